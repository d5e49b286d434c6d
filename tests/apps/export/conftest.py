"""Small detectors for exporting, which takes longer with each layer."""

from collections.abc import Iterator

import pytest

from detlite.modeling.backbone import resnet


@pytest.fixture(scope="module", autouse=True)
def _short_resnets() -> Iterator[None]:
    """Build a ResNet-18 with one block in each stage."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(resnet.DEPTHS, 18, (1, 1, 1, 1))
        yield
