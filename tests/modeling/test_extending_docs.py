"""The Python examples of docs/extending.md run as they stand."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from detlite import build_model
from detlite.data import build_dataset

BLOCKS = re.findall(
    r"```python\n(.*?)```",
    (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8"),
    re.DOTALL,
)


@pytest.fixture
def run_block(tmp_path):
    """Writes the one block that holds a text into a file, for IMPORTS."""

    def run(text: str) -> str:
        (block,) = (block for block in BLOCKS if text in block)
        path = tmp_path / f"example_{abs(hash(text))}.py"
        path.write_text(block)
        return str(path)

    return run


def test_every_block_is_tested_here():
    assert len(BLOCKS) == 3


@pytest.mark.parametrize(
    ("text", "opts"),
    [
        ("AveragedAlign", ["MODEL.ROI_BOX_HEAD.POOLER_TYPE", "AveragedAlign"]),
        ("mobilenet-FPN", ["MODEL.BACKBONE.CONV_BODY", "mobilenet-FPN"]),
    ],
)
def test_example_trains_a_step_and_detects(run_block, tiny_config, make_batch, text, opts):
    cfg = tiny_config("IMPORTS", run_block(text), *opts)
    model = build_model(cfg).train()
    images, targets = make_batch(2, 1)
    losses = model(images, targets)
    sum(losses.values()).backward()
    assert all(torch.isfinite(loss) for loss in losses.values())
    assert len(model.eval()(images)) == 2


def test_data_set_of_a_table(run_block, tiny_config, tmp_path):
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "photos" / "a.png")
    (tmp_path / "train.csv").write_text("a.png,40,30,cat,1,2,10,20\na.png,40,30,dog,5,5,4,4\n")
    entry = {"name": "train", "type": "boxes-table", "table": "train.csv", "images": "photos"}
    options = ["DATASETS.ROOT", str(tmp_path), "DATASETS.CATALOG", [entry], "MODEL.MASK_ON", False]
    cfg = tiny_config("IMPORTS", run_block("boxes-table"), *options)
    dataset = build_dataset(cfg, "train", train=True)
    _, target = dataset[0]
    assert target["boxes"].tolist() == [[1, 2, 11, 22], [5, 5, 9, 9]]
    assert [row["name"] for row in dataset.categories] == ["cat", "dog"]
