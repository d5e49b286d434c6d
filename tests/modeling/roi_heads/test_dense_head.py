import pytest

from detlite.config import ConfigError
from detlite.modeling.build import build_model


@pytest.mark.parametrize(("resolution", "predicted"), [(14, 28), (30, 28)])
def test_resolution_must_be_that_of_the_head(tiny_config, resolution, predicted):
    with pytest.raises(
        ConfigError, match=rf"RESOLUTION is {resolution}, but the head predicts {predicted}"
    ):
        build_model(tiny_config("MODEL.ROI_MASK_HEAD.RESOLUTION", resolution))


def test_vector_features_cannot_be_shared(tiny_config):
    with pytest.raises(ConfigError, match="FPN2MLPFeatureExtractor computes vectors, not maps"):
        build_model(tiny_config("MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", True))


@pytest.mark.parametrize("key", ["FEATURE_EXTRACTOR", "PREDICTOR"])
def test_unknown_name_is_reported_with_its_key(tiny_config, key):
    with pytest.raises(ConfigError, match=rf"MODEL\.ROI_MASK_HEAD\.{key}: unknown mask .* 'None'"):
        build_model(tiny_config(f"MODEL.ROI_MASK_HEAD.{key}", "None"))
