"""Test conversion between polygons, RLEs and bitmaps."""

import json

import numpy as np
import pytest
from pycocotools import mask as rle_codec

from detlite.structures.masks.formats import encode_bitmap, polygons_to_rle, to_bitmap


@pytest.mark.parametrize("far", [77.0, 1e9, 1e300, float("inf"), float("nan")])
def test_polygons_far_outside_are_rejected_before_they_take_memory(far):
    for ring in ([1, 1, far, 1, far, 9], [1, 1, 9, -far, 9, 9]):
        with pytest.raises(ValueError, match="too far outside an image of 12x8"):
            polygons_to_rle([[1, 1, 5, 1, 5, 5], ring], 8, 12)


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.int64])
@pytest.mark.parametrize("density", [0.0, 0.5, 1.0])
def test_encoded_bitmap_is_json(dtype, density):
    bitmap = (np.random.default_rng(0).random((6, 11)) < density).astype(dtype)
    rle = json.loads(json.dumps(encode_bitmap(bitmap)))
    assert rle["size"] == [6, 11]
    for one in (rle, {"size": [6, 11], "counts": rle["counts"].encode()}):
        assert np.array_equal(to_bitmap(one, 6, 11), bitmap)
    assert rle_codec.area(rle) == bitmap.sum()
