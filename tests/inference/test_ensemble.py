"""Test merged detections of several models."""

import pytest
import torch

from detlite.checkpoint.files import Checkpoint, save_checkpoint
from detlite.config import ConfigError
from detlite.inference.ensemble import EnsembleDetector
from detlite.inference.image_detector import ImageDetector
from detlite.inference.predictor import Predictor
from detlite.modeling.build import build_model
from detlite.structures.instances import Detections

ALL = ["MODEL.ROI_HEADS.SCORE_THRESH", 0.0]


class Fixed(ImageDetector):
    """Detects the boxes (x1, y1, x2, y2, score, label) in each image."""

    def __init__(self, model, *rows, cells=2):
        super().__init__(model)
        self.rows, self.cells = torch.tensor(rows, dtype=torch.float32).reshape(-1, 6), cells

    def _detect(self, image, proposals, min_score):
        rows = self.rows[self.rows[:, 4] >= min_score]
        masks = rows[:, 4, None, None].expand(-1, self.cells, self.cells)
        labels = rows[:, 5].long()
        return Detections(rows[:, :4], rows[:, 4], labels, labels > 0, mask_probs=masks)


@pytest.fixture
def image():
    return torch.randint(0, 255, (3, 60, 90), dtype=torch.uint8)


def save(cfg, path, names=("a", "b", "c"), thresh=0.0, seed=0):
    torch.manual_seed(seed)
    model = build_model(cfg)
    torch.nn.init.normal_(model.roi_heads.box.predictor.bbox_pred.weight, std=0.3)
    categories = [{"id": k, "name": name} for k, name in enumerate(names, start=1)]
    cfg = cfg.clone()
    cfg.defrost()
    cfg.TEST.SCORE_THRESHOLD = thresh
    save_checkpoint(Checkpoint(path, model.state_dict(), categories, cfg.dump()))
    return path


@pytest.mark.parametrize(
    "opts",
    [
        [],
        pytest.param(["TEST.TILE", 48], marks=pytest.mark.slow),
        ["TEST.BBOX_AUG.ENABLED", True],
    ],
)
def test_a_model_given_twice_detects_the_same(tiny_config, tmp_path, image, opts):
    path = save(tiny_config(*ALL), tmp_path / "a.pth")
    once, twice = (
        Predictor.from_checkpoint(paths, opts, score_thresh=0.0)([image])[0]
        for paths in (path, [path, str(path)])
    )
    assert len(once["scores"]) > 10
    assert once.keys() == twice.keys()
    for name in ("boxes", "labels", "scores"):
        torch.testing.assert_close(twice[name], once[name])
    assert torch.equal(twice["masks"], once["masks"])


def test_overlapping_boxes_are_averaged(tiny_config, image):
    model = build_model(tiny_config()).eval()
    detectors = [
        Fixed(model, [0, 0, 10, 10, 0.9, 1], [50, 0, 60, 10, 0.6, 2], [50, 0, 60, 10, 0.2, 1]),
        Fixed(model, [0, 0, 12, 10, 0.3, 1], [20, 0, 30, 10, 0.5, 1]),
        Fixed(model),
    ]
    (found,) = EnsembleDetector(detectors).detect([image], min_score=0.25)
    expected = [[0, 0, 10.5, 10], [50, 0, 60, 10], [20, 0, 30, 10]]
    torch.testing.assert_close(found.boxes, torch.tensor(expected))
    assert found.scores.tolist() == pytest.approx([0.9, 0.6, 0.5])
    assert found.labels.tolist() == [1, 2, 1]
    assert found.mask_boxes[0].tolist() == [0, 0, 10, 10]
    assert found.mask_probs[:, 0, 0].tolist() == pytest.approx([0.9, 0.6, 0.5])


def test_models_of_a_cross_validation(tiny_config, tmp_path, image):
    """Sizes may differ, and the threshold is the mean of the thresholds that training measured."""
    paths = [
        save(tiny_config(*ALL, "INPUT.MIN_SIZE_TEST", size), tmp_path / f"{size}.pth", seed=size,
             thresh=thresh)
        for size, thresh in ((48, 0.2), (64, 0.4))
    ]  # fmt: skip
    merged = Predictor.from_checkpoint(paths)
    assert merged.score_thresh == pytest.approx(0.3)
    assert len(Predictor.from_checkpoint(paths, score_thresh=0.0)(image)["scores"]) > 10


def test_models_that_differ_are_refused(tiny_config, tmp_path, image):
    path, other = (save(tiny_config(*ALL), tmp_path / f"{n}.pth", n * 3) for n in "ab")
    with pytest.raises(ConfigError, match="the categories of model 2 and of the first one differ"):
        Predictor.from_checkpoint([path, other])
    model = build_model(tiny_config()).eval()
    row = [0, 0, 10, 10, 0.9, 1]
    with pytest.raises(ConfigError, match="the models have other heads"):
        EnsembleDetector([Fixed(model, row), Fixed(model, row, cells=4)]).detect([image])
