import pytest

from detlite.config import ConfigError
from detlite.modeling.build import build_model


@pytest.mark.parametrize("agnostic", [False, True])
def test_number_of_box_regressions(tiny_config, agnostic):
    model = build_model(tiny_config("MODEL.CLS_AGNOSTIC_BBOX_REG", agnostic))
    predictor = model.roi_heads.box.predictor
    assert predictor.cls_score.out_features == 4
    assert predictor.bbox_pred.out_features == (8 if agnostic else 16)


@pytest.mark.parametrize("key", ["FEATURE_EXTRACTOR", "PREDICTOR"])
def test_unknown_name_is_reported_with_its_key(tiny_config, key):
    with pytest.raises(ConfigError, match=rf"MODEL\.ROI_BOX_HEAD\.{key}: unknown box .* 'None'"):
        build_model(tiny_config(f"MODEL.ROI_BOX_HEAD.{key}", "None"))
