"""Backbones and heads that differ from the default by a few keys."""

import pytest
import torch

from detlite.modeling.build import build_model
from tests.modeling.family import family_config


@pytest.mark.parametrize("name", ["mask", "c4", "cascade", "retinanet", "retinanet-torchvision"])
def test_scores_of_all_classes_and_features(name, tiny_config):
    features = () if name.startswith("retinanet") else ("features",)
    cfg = family_config(
        name, tiny_config, "TEST.EXTRA_OUTPUTS", ("class_scores", *features),
        "MODEL.ROI_HEADS.SCORE_THRESH", 0.0,
    )  # fmt: skip
    model = build_model(cfg).eval()
    images = [torch.rand(3, 64, 96), torch.rand(3, 80, 72)]
    batch, _ = model.prepare(images)
    with torch.no_grad():
        maps = model.backbone(batch.pixels)
        results = model.detect(images)
    for number, one in enumerate(results):
        assert len(one.boxes) > 3
        assert one.extra_fields["class_scores"].shape[1] == model.num_classes - 1
        foreground = one.labels > 0  # torchvision's RetinaNet detects the background too
        own = one.extra_fields["class_scores"][foreground].gather(
            1, one.labels[foreground, None] - 1
        )[:, 0]
        torch.testing.assert_close(own, one.scores[foreground])
        if features:
            image = torch.full((len(one.boxes), 1), float(number))
            rois = torch.cat([image, one.boxes], dim=1)
            with torch.no_grad():
                expected = model.roi_heads.box.feature_extractor(maps, rois)
            expected = expected.flatten(2).mean(dim=2) if expected.dim() == 4 else expected
            torch.testing.assert_close(one.extra_fields["features"], expected, rtol=1e-4, atol=1e-5)
    result = model(images)[0]
    assert torch.equal(result["class_scores"], results[0].extra_fields["class_scores"])
