"""Check that links, headings, files and config keys named in the documentation exist."""

import ast
import pkgutil
import re
import runpy
from pathlib import Path

import pytest

from detlite.config import KEYS, load_config
from detlite.config.maskrcnn_benchmark import RESTATING
from detlite.config.removed import KEYS as REMOVED
from detlite.config.removed import NO_EFFECT

ROOT = Path(__file__).parents[1]
_OUTSIDE = (
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "configs/README.md",
    "csrc/README.md",
)  # fmt: skip
PAGES = sorted(
    [
        *(ROOT / name for name in _OUTSIDE),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "benchmarks").rglob("*.md"),
        *(ROOT / "projects").rglob("*.md"),
    ]
)
_NAMES = {key.name for key in KEYS} | {*NO_EFFECT, *RESTATING}
_SECTIONS = {name.rpartition(".")[0] for name in _NAMES}
_KEY = re.compile(
    r"\b(?:MODEL|INPUT|DATASETS|DATALOADER|SOLVER|TEST)\.[A-Z0-9_.]*[A-Z0-9]\b(?![*{])"
)


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_link_targets_exist(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert target.startswith("http") or file.exists(), f"{page.name} links to {target}"
        assert not anchor or target.startswith("http") or anchor in anchors(file), target


def _declared_next_to(page: Path) -> set[str]:
    """Return the keys that the extensions in the folder of a page declare."""
    texts = [file.read_text() for file in page.parent.glob("*.py")]
    return {
        f"{section}.{name}"
        for text in texts
        for section in re.findall(r'declare_keys\(\s*"([\w.]+)"', text)
        for name in re.findall(r'Key\("(\w+)"', text)
    }


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_named_files_and_keys_exist(page):
    text = page.read_text()
    for name in re.findall(r"^::: ([\w.]+)", text, re.MULTILINE):
        pkgutil.resolve_name(name)
    if page.name != "migrating.md":  # which also names keys of other frameworks
        pattern = r"`((?:benchmarks|csrc|detlite|docs|tests|tools)/[\w./-]+\.(?:cpp|cu|h|py|md))`"
        files = [file for file in re.findall(pattern, text) if "NAME" not in file]
        assert not [file for file in files if not (ROOT / file).exists()]
        removed = {*REMOVED} if page.name in ("CHANGELOG.md", "config.md", "removed.md") else set()
        assert {*_KEY.findall(text)} <= _NAMES | _SECTIONS | removed | _declared_next_to(page)


def test_configs_load(tmp_path):
    """Load every YAML block that is a config, not an entry of one."""
    count = 0
    for page in PAGES:
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            if not block.startswith("- "):
                file = tmp_path / "config.yaml"
                file.write_text(re.sub(r"(?m)^IMPORTS:.*", "", block))  # the reader's files
                load_config(file)
                count += 1
    assert count > 4


def test_table_of_extras_matches_pyproject():
    project = (ROOT / "pyproject.toml").read_text()
    [section] = re.findall(r"(?ms)^\[project\.optional-dependencies\]\n(.*?)^\[", project)
    stated = {
        name: [re.split("[<>=]", package)[0] for package in ast.literal_eval(packages)]
        for name, packages in re.findall(r"(?ms)^(\w+) = (\[.*?\])$", section)
    }
    page = (ROOT / "docs" / "installing.md").read_text()
    documented = re.findall(r"(?m)^\| `(\w+)` \| (.*?) \|", page.partition("## Extras")[2])
    assert {name: packages.split(", ") for name, packages in documented} == stated
    assert "pretrained" in stated


def test_command_reference_is_up_to_date():
    """Run `python docs/cli_reference.py > docs/cli.md` to update the page."""
    page = runpy.run_path(str(ROOT / "docs" / "cli_reference.py"))["cli_page"]()
    assert (ROOT / "docs" / "cli.md").read_text() == page
    assert "| `--threshold SCORE` | report detections with at least this score" in page


def test_broken_links_fail(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading, with `code`\n```\n# a comment\n```\n[x](none.md)\n")
    assert anchors(page) == {"a-heading-with-code"}
    with pytest.raises(AssertionError, match=r"page\.md links to none\.md"):
        test_link_targets_exist(page)
