"""The predictor of a command: of a checkpoint, or of an exported file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from yacs.config import CfgNode

from detlite import ConfigError, build_model
from detlite.apps.batch_predict.batch_predict import load_predictor
from detlite.apps.export.exported_detector import prepare_export, write_exported
from detlite.apps.export.exported_program import ProgramDetector
from detlite.inference import predictor
from detlite.inference.predictor import Predictor
from detlite.inference.tiling import Tiling


@pytest.fixture(scope="module")
def exported(
    tiny_config: Callable[..., CfgNode], tmp_path_factory: pytest.TempPathFactory, read_once: None
) -> str:
    """A file of an untrained model that finds something everywhere."""
    cfg = tiny_config(
        "MODEL.ROI_HEADS.SCORE_THRESH", 0.0, "INPUT.MIN_SIZE_TEST", 64, "TEST.TILE", 80,
        "TEST.TILE_OVERLAP", 0.3, "INPUT.IMAGE_BITS", 12, "DATASETS.MAX_PIXELS", 20_000,
    )  # fmt: skip
    model = build_model(cfg).eval()
    model.categories = [{"id": k, "name": f"kind {k}"} for k in (1, 2, 3)]
    file: Path = tmp_path_factory.mktemp("exported") / "model.pt2"
    write_exported(file, "pt2", prepare_export(cfg, model), model)
    return str(file)


def test_tiles_of_an_exported_model(exported: str) -> None:
    picture = torch.randint(0, 256, (3, 90, 120), dtype=torch.uint8)
    plain = load_predictor(exported, 0.0, ["TEST.TILE", "0"])(picture)
    tiled = load_predictor(exported, 0.0, ["TEST.TILE", "64"])(picture)
    assert len(plain["boxes"]) > 0
    assert not torch.equal(plain["scores"], tiled["scores"][: len(plain["scores"])])


@pytest.mark.parametrize(
    ("opts", "tiling"),
    [
        ([], Tiling(80, 0.3)),
        (["TEST.TILE", "0"], None),
        (["TEST.TILE_OVERLAP", "0.5"], Tiling(80, 0.5)),
        (["TEST.TILE", "64", "TEST.IMS_PER_BATCH", "2"], Tiling(64, 0.3, 2)),
    ],
)
def test_overrides_are_of_the_config_in_the_file(
    exported: str, opts: list[str], tiling: Tiling | None
) -> None:
    found = load_predictor(exported, 0.0, opts).detector
    assert getattr(found, "tiling", None) == tiling


def test_limits_of_pictures(exported: str) -> None:
    """Those of the file, unless others are given."""
    read = Predictor(exported)
    assert (read.max_pixels, read.image_bits) == (20_000, 12)
    read = Predictor(exported, max_pixels=99, image_bits=10)
    assert (read.max_pixels, read.image_bits) == (99, 10)
    given = ["DATASETS.MAX_PIXELS", "500", "INPUT.IMAGE_BITS", "9"]
    for opts, most, wanted in (([], None, 20_000), ([], 700, 700), (given, 700, 500)):
        read = load_predictor(exported, 0.0, opts, max_pixels=most)
        assert (read.max_pixels, read.image_bits) == (wanted, 9 if opts else 12)


def test_views_of_an_exported_model(
    tiny_config: Callable[..., CfgNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the file says: by parts; a whole program is refused."""
    cfg = tiny_config("TEST.BBOX_AUG.ENABLED", True, "TEST.BBOX_AUG.H_FLIP", True)
    model = build_model(cfg).eval()
    predictor.READERS.get("exported")  # imports the reader that is replaced
    monkeypatch.setitem(predictor.READERS._builders, "exported", lambda *_: (cfg, model))
    for read in (Predictor("model.openvino"), load_predictor("model.openvino", 0.0)):
        assert [view.flip for view in read.detector.views] == [False, True]
    assert Predictor("model.openvino", min_size=64).detector is model
    program = ProgramDetector(model, lambda *_: [])
    monkeypatch.setitem(predictor.READERS._builders, "exported", lambda *_: (cfg, program))
    with pytest.raises(ConfigError, match=r"TEST\.BBOX_AUG\.ENABLED must be False: an exported"):
        Predictor("model.onnx")


@pytest.mark.parametrize(
    ("opts", "config", "named"),
    [
        (["TEST.TILE", "64", "MODEL.RPN.NMS_THRESH", "0.6"], None, "MODEL.RPN.NMS_THRESH"),
        (["DTYPE", "x", "A", "1", "DTYPE", "y", "B", "1"], None, "DTYPE, A, B"),
        ([], "demo_shapes.yaml", "--config"),
    ],
)
def test_the_config_of_an_exported_model_is_fixed(
    exported: str, opts: list[str], config: str | None, named: str
) -> None:
    with pytest.raises(ConfigError, match=f"config in it, which {named} cannot change"):
        load_predictor(exported, 0.0, opts, config)
