"""Almost valid config files and overrides lead to a config or a ConfigError."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.apps.dataset_formats.labeled_dataset import Conversion, to_coco
from detlite.config import KEYS, load_config
from tests.fuzz.inputs import mutated, mutated_bytes, unexpected_values

ROOT = Path(__file__).parents[2]
VALID: dict[str, Any] = {
    key: value
    for key, value in yaml.safe_load((ROOT / "configs" / "demo_shapes.yaml").read_text()).items()
    if key != "_BASE_"
}
NAMES = [key.name for key in KEYS if key.name != "IMPORTS"]  # IMPORTS runs code


@pytest.fixture
def read(check):
    """Return a function that loads a config file with this content, unless it would run code."""

    def read(data: bytes, opts: list[Any]) -> None:
        def load(file: Path) -> None:
            cfg = load_config(file, opts)
            file.write_text(cfg.dump())
            assert load_config(file) == cfg

        if b"IMPORTS" not in data and "IMPORTS" not in opts:
            check(load, data, ".yaml", limit=1_000_000)  # messages repeat values

    return read


@given(content=mutated(VALID))
@example(content={"DATALOADER": {"\n": 0}})
@pytest.mark.slow
def test_config_files(content, read):
    try:
        data = yaml.safe_dump(content, allow_unicode=True).encode()
    except UnicodeEncodeError:
        return
    read(data, [])


@given(bases=st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=6, max_size=6))
@example(bases=[[1, 1, 1], [2, 2, 2], [3, 3, 3], [4, 4, 4], [5, 5, 5], []])
def test_files_that_refer_to_each_other(bases, tmp_path, bounded):
    for number, others in enumerate(bases):
        content = {"_BASE_": [f"base_{other}.yaml" for other in others]}
        (tmp_path / f"base_{number}.yaml").write_text(yaml.safe_dump(content))
    with bounded():
        load_config(tmp_path / "base_0.yaml")


@given(data=mutated_bytes(yaml.safe_dump(VALID).encode()))
@example(data=b"a: &a [*a]")
@example(data=b"&a a: {*a : 1}")
@example(data=b"{[1]: 2}")
@example(data=b"SOLVER: !!python/object:os.system {}")
@example(data=b"? {a: b}\n: c")
@example(data=b"<<: 3")
@example(data=b"OUTPUT_DIR: 2026-11-31")
@example(data=b"OUTPUT_DIR: 2026-11-22 25:00:00")
def test_bytes_of_config_files(data, read):
    read(data, [])


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
def test_tags_of_yaml(value, key, tmp_path, read, bounded):
    """Also in YOLO's data.yaml."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (tmp_path / "data.yaml").write_bytes(f"nc: 1\ntrain: .\n{key}: {value}\n".encode())
    read(f"{key}: {value}\n".encode(), [])
    read(value.encode(), [])
    with bounded(max_length=20_000):
        for dataset in read_folder(tmp_path, Conversion())[1].values():
            to_coco(dataset)


NAME = st.sampled_from(NAMES)


@given(
    opts=st.lists(st.tuples(NAME, unexpected_values()), max_size=3)
    | st.lists(st.tuples(st.text(max_size=30) | NAME), max_size=4)
)
@example(opts=[("SOLVER.MAX_ITER", "9" * 5000)])
@example(opts=[("SOLVER.STEPS", "(" * 500)])
@example(opts=[("SOLVER.STEPS", "-" * 100_000 + "1")])
@example(opts=[("SOLVER.BASE_LR", 10**400)])
def test_overrides(opts, read):
    read(b"", [part for pair in opts for part in pair])
