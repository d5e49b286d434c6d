"""Check that the tests of `detlite/x/y.py` are in `tests/x/test_y.py`."""

import pytest

from detlite.apps.cli.main import COMMANDS

# Folders of tests that do not belong to a single module of the package.
OTHER_FOLDERS = {"benchmarks", "fuzz", "projects", "soak", "tools", "wheel"}
# Tests of several modules together, by folder.
CROSS_CUTTING = {
    "apps/cli": {*COMMANDS},
    "apps/serve": {"page"},
    "config": {"what_users_add", "restating", "schema", "shipped_configs"},
    "conversion": {"classifiers", "golden", "training"},
    "checkpoint": {"conventions", "timm_weights"},
    "conversion/detectron2": {"recorded_outputs"},
    "data/annotations": {"masks", "values", "variants"},
    "engine": {"elastic", "every_head", "hooks", "host_reads"},
    "modeling": {
        "conventions", "extending_docs", "other_device", "family", "models_on_cuda",
    },
    "ops": {
        "cuda_on_cpu", "export", "fuzz", "hip", "invalid_arguments", "messages", "padded_nms",
        "paste_masks", "plain_versions", "pyramid", "roi_operators", "threads",
    },
}  # fmt: skip


@pytest.fixture
def test_files(repo_root):
    """Return the test files of the package as (folder, name), without `test_` and `.py`."""
    files = [file.relative_to(repo_root / "tests") for file in repo_root.glob("tests/**/test_*.py")]
    return {
        (file.parent.as_posix(), file.stem.removeprefix("test_"))
        for file in files
        if len(file.parts) > 1 and file.parts[0] not in OTHER_FOLDERS
    }


def test_every_test_file_has_a_module(repo_root, test_files):
    lost = [
        f"tests/{folder}/test_{name}.py"
        for folder, name in sorted(test_files)
        if not (repo_root / "detlite" / folder / f"{name}.py").exists()
        and name not in CROSS_CUTTING.get(folder, ())
    ]
    assert not lost


def test_every_folder_of_the_package_has_tests(repo_root, test_files):
    folders = {
        file.parent.relative_to(repo_root / "detlite").as_posix()
        for file in (repo_root / "detlite").rglob("*.py")
        if file.name not in ("__init__.py", "__main__.py")
    } - {"."}
    assert folders <= {folder for folder, _ in test_files}
