import pytest

from detlite.config import ConfigError
from detlite.modeling.build import build_model


@pytest.mark.parametrize("key", ["FEATURE_EXTRACTOR", "PREDICTOR"])
def test_unknown_name_is_reported_with_its_key(tiny_config, key):
    with pytest.raises(ConfigError, match=rf"MODEL\.ROI_BOX_HEAD\.{key}: unknown box .* 'None'"):
        build_model(tiny_config(f"MODEL.ROI_BOX_HEAD.{key}", "None"))
