"""Almost valid config files and overrides lead to a config or a ConfigError."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.apps.dataset_formats.labeled_dataset import Conversion, to_coco
from detlite.config import KEYS, ConfigError, load_config
from detlite.files.errors import DataError
from tests.fuzz.inputs import check_message, mutated, mutated_bytes, unexpected_values

ROOT = Path(__file__).parents[2]
VALID: dict[str, Any] = {
    key: value
    for key, value in yaml.safe_load((ROOT / "configs" / "demo_shapes.yaml").read_text()).items()
    if key != "_BASE_"
}
NAMES = [key.name for key in KEYS if key.name != "IMPORTS"]  # IMPORTS runs code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs")


_file_numbers = itertools.count()


def check_reading(data: bytes, opts: list[Any], folder: Path) -> None:
    file = folder / f"{next(_file_numbers)}.yaml"
    file.write_bytes(data)
    try:
        cfg = load_config(file, opts)
        again = folder / f"{next(_file_numbers)}.yaml"
        again.write_text(cfg.dump())
        assert load_config(again) == cfg
        again.unlink()
    except ConfigError as error:
        check_message(error, max_length=1_000_000)  # it repeats values
    finally:
        file.unlink()


def runs_code(content: Any) -> bool:
    return isinstance(content, dict) and "IMPORTS" in content


@given(content=mutated(VALID))
@example(content={"DATALOADER": {"\n": 0}})
@pytest.mark.slow
def test_config_files(content, folder, bounded):
    if runs_code(content):
        return
    try:
        data = yaml.safe_dump(content, allow_unicode=True).encode()
    except UnicodeEncodeError:
        return
    with bounded():
        check_reading(data, [], folder)


@given(bases=st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=6, max_size=6))
@example(bases=[[1, 1, 1], [2, 2, 2], [3, 3, 3], [4, 4, 4], [5, 5, 5], []])
def test_files_that_refer_to_each_other(bases, folder, bounded):
    for number, others in enumerate(bases):
        content = {"_BASE_": [f"base_{other}.yaml" for other in others]}
        (folder / f"base_{number}.yaml").write_text(yaml.safe_dump(content))
    with bounded():
        try:
            load_config(folder / "base_0.yaml")
        except ConfigError as error:
            check_message(error)


@given(data=mutated_bytes(yaml.safe_dump(VALID).encode()))
@example(data=b"a: &a [*a]")
@example(data=b"&a a: {*a : 1}")
@example(data=b"{[1]: 2}")
@example(data=b"SOLVER: !!python/object:os.system {}")
@example(data=b"? {a: b}\n: c")
@example(data=b"<<: 3")
@example(data=b"OUTPUT_DIR: 2026-11-31")
@example(data=b"OUTPUT_DIR: 2026-11-22 25:00:00")
def test_bytes_of_config_files(data, folder, bounded):
    if b"IMPORTS" in data:
        return
    with bounded():
        check_reading(data, [], folder)


_TAGS = [
    "", "", "!!bool ", "!!int ", "!!float ", "!!null ", "!!timestamp ", "!!binary ", "!!omap ",
    "!!pairs ", "!!set ", "!!str ", "!!seq ", "!!map ", "!!merge ", "!!value ", "! ", "!own ",
    "!!python/tuple ", "&a ", "&a !!map ",
]  # fmt: skip
_SCALARS = [
    "maybe", "", "0x", "1:61", "nan", ".inf", "2001-99-99", "2001-01-01 0:0:0 +99:99", "=",
    "0b", "1e", "_", "0x_", "-_", "+.", "0o8", "'\xe9'", "names", "*a", '"\\0"', '"\\ud800"', "1",
    "a", "<<",
]  # fmt: skip
YAML_VALUES = st.recursive(
    st.tuples(st.sampled_from(_TAGS), st.sampled_from(_SCALARS)).map("".join),
    lambda inner: st.tuples(
        st.sampled_from(_TAGS),
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(inner, inner), max_size=3).map(
            lambda rows: "{" + ", ".join(f"{key} : {value}" for key, value in rows) + "}"
        ),
    ).map("".join),
    max_leaves=8,
)


@given(value=YAML_VALUES, key=st.sampled_from(["SEED", "INPUT", "names", "<<", "? x\n"]))
@example(value="!!bool maybe", key="names")
@pytest.mark.slow
def test_tags_of_yaml(value, key, folder, bounded):
    """Also in YOLO's data.yaml."""
    (folder / "labels").mkdir(exist_ok=True)
    Image.new("RGB", (8, 8)).save(folder / "labels" / "a.png")
    (folder / "labels" / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (folder / "labels" / "data.yaml").write_bytes(f"nc: 1\ntrain: .\n{key}: {value}\n".encode())
    with bounded():
        check_reading(f"{key}: {value}\n".encode(), [], folder)
        check_reading(value.encode(), [], folder)
        try:
            for dataset in read_folder(folder / "labels", Conversion())[1].values():
                to_coco(dataset)
        except (DataError, ConfigError) as error:
            check_message(error, max_length=20_000)


@given(opts=st.lists(st.tuples(st.sampled_from(NAMES), unexpected_values()), max_size=3))
@example(opts=[("SOLVER.MAX_ITER", "9" * 5000)])
@example(opts=[("SOLVER.STEPS", "(" * 500)])
@example(opts=[("SOLVER.STEPS", "-" * 100_000 + "1")])
@example(opts=[("SOLVER.BASE_LR", 10**400)])
def test_overrides(opts, folder, bounded):
    with bounded():
        check_reading(b"", [part for pair in opts for part in pair], folder)


@given(names=st.lists(st.text(max_size=30) | st.sampled_from(NAMES), max_size=4))
def test_names_of_overrides(names, folder, bounded):
    if "IMPORTS" in names:
        return
    with bounded():
        check_reading(b"", list(names), folder)
