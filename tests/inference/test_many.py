"""The predictor of a command: of a checkpoint, or of an exported file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from yacs.config import CfgNode

from detlite import ConfigError, build_model
from detlite.inference.exported import exportable, write_exported
from detlite.inference.many import load_predictor


@pytest.fixture(scope="module")
def exported(tiny_config: Callable[..., CfgNode], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of an untrained model that finds something everywhere."""
    cfg = tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0, "INPUT.MIN_SIZE_TEST", 64)
    model = build_model(cfg).eval()
    model.categories = [{"id": k, "name": f"kind {k}"} for k in (1, 2, 3)]
    file: Path = tmp_path_factory.mktemp("exported") / "model.pt2"
    write_exported(file, "pt2", exportable(cfg, model), model)
    return str(file)


def test_tiles_of_an_exported_model(exported: str) -> None:
    picture = torch.randint(0, 256, (3, 90, 120), dtype=torch.uint8)
    plain = load_predictor(exported, 0.0)(picture)
    tiled = load_predictor(exported, 0.0, ["TEST.TILE", "64"])(picture)
    assert len(plain["boxes"]) > 0
    assert not torch.equal(plain["scores"], tiled["scores"][: len(plain["scores"])])


@pytest.mark.parametrize(
    ("opts", "config", "named"),
    [
        (["TEST.TILE", "64", "MODEL.RPN.NMS_THRESH", "0.6"], None, "MODEL.RPN.NMS_THRESH"),
        ([], "demo_shapes.yaml", "--config"),
    ],
)
def test_the_config_of_an_exported_model_is_fixed(
    exported: str, opts: list[str], config: str | None, named: str
) -> None:
    with pytest.raises(ConfigError, match=f"config in it, which {named} cannot change"):
        load_predictor(exported, 0.0, opts, config)
