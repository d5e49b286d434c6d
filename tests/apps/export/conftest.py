"""Small detectors for exporting, which takes longer with each layer."""

import functools
from collections.abc import Iterator

import pytest

from detlite.apps.export import exported_detector
from detlite.modeling.backbone import resnet


@pytest.fixture(scope="module", autouse=True)
def _fast_exports() -> Iterator[None]:
    """Build a ResNet-18 with one block in each stage, and read the program of a file only once.

    Reading takes torch 10 seconds or more.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(resnet.DEPTHS, 18, (1, 1, 1, 1))
        patch.setattr(exported_detector, "_pt2_run", functools.cache(exported_detector._pt2_run))
        yield
