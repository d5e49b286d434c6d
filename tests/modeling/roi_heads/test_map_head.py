import pytest

from detlite.config import ConfigError
from detlite.modeling.build import build_model


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("RESOLUTION", 14, "RESOLUTION is 14, but the head predicts 28"),
        ("RESOLUTION", 30, "RESOLUTION is 30, but the head predicts 28"),
        ("SHARE_BOX_FEATURE_EXTRACTOR", True, "FPN2MLPFeatureExtractor computes vectors, not maps"),
        (
            "FEATURE_EXTRACTOR",
            "None",
            r"MASK_HEAD\.FEATURE_EXTRACTOR: unknown mask .* 'None'",
        ),
        ("PREDICTOR", "None", r"MASK_HEAD\.PREDICTOR: unknown mask .* 'None'"),
    ],
)
def test_keys_that_do_not_fit(tiny_config, key, value, message):
    with pytest.raises(ConfigError, match=message):
        build_model(tiny_config(f"MODEL.ROI_MASK_HEAD.{key}", value))
