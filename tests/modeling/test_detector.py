import torch

from detlite.modeling.build import build_model
from detlite.modeling.detector import Detector


def detect_with(detector: Detector, image: torch.Tensor) -> int:
    assert not detector.resizes_images
    assert not detector.takes_proposals
    assert detector.device.type == "cpu"
    assert detector.mask_threshold == 0.5
    assert detector.convention.name == "detlite"
    assert detector.categories == []
    (detections,) = detector.detect([image], min_score=0.0)
    return len(detections.boxes)


def test_models_are_detectors(tiny_config):
    model = build_model(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)).eval()
    assert detect_with(model, torch.rand(3, 64, 96)) == 20
