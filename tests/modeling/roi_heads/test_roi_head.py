import pytest

from detlite.config import ConfigError
from detlite.modeling.build import build_model
from tests.modeling.family import family_config

PREDICTS_28, PREDICTS_56 = (f"but the head predicts {side}" for side in (28, 56))
VECTORS = "FPN2MLPFeatureExtractor computes vectors, not maps"


@pytest.mark.parametrize(
    ("kind", "key", "value", "message"),
    [
        ("mask", "RESOLUTION", 14, f"RESOLUTION is 14, {PREDICTS_28}"),
        ("mask", "RESOLUTION", 30, f"RESOLUTION is 30, {PREDICTS_28}"),
        ("mask", "SHARE_BOX_FEATURE_EXTRACTOR", True, VECTORS),
        ("mask", "FEATURE_EXTRACTOR", "None", r"FEATURE_EXTRACTOR: unknown mask .* 'None'"),
        ("mask", "PREDICTOR", "None", r"MASK_HEAD\.PREDICTOR: unknown mask .* 'None'"),
        ("keypoint", "RESOLUTION", 14, f"RESOLUTION is 14, {PREDICTS_56}"),
        ("keypoint", "SHARE_BOX_FEATURE_EXTRACTOR", True, VECTORS),
    ],
)
def test_keys_that_do_not_fit(tiny_config, kind, key, value, message):
    with pytest.raises(ConfigError, match=message):
        build_model(family_config(kind, tiny_config, f"MODEL.ROI_{kind.upper()}_HEAD.{key}", value))
