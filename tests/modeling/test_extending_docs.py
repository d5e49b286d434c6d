"""The Python examples of docs/extending.md run as they stand."""

import re
from pathlib import Path

import pytest
import torch

from detlite import build_model

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
    assert len(BLOCKS) == 2


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
