"""Resizing with the exact results of OpenCV."""

import pytest
import torch

from detlite.data.transforms.opencv_resize import resize_as_opencv

# Results of cv2.resize (OpenCV 5.0, INTER_LINEAR) for a 3 x 4 image of 0, 20, 40, ...
_OPENCV_RESULTS = {
    (2, 3): [[23, 50, 76], [143, 170, 196]],
    (5, 6): [[0, 10, 23, 37, 50, 60], [32, 42, 55, 69, 82, 92], [80, 90, 103, 117, 130, 140],
             [128, 138, 151, 165, 178, 188], [160, 170, 183, 197, 210, 220]],
}  # fmt: skip


@pytest.mark.parametrize("size", _OPENCV_RESULTS)
def test_resize_equals_recorded_opencv(size):
    image = (torch.arange(12) * 20).view(1, 3, 4).to(torch.uint8)
    assert resize_as_opencv(image, size).tolist() == [_OPENCV_RESULTS[size]]


@pytest.mark.parametrize("size", [(47, 64), (64, 47), (1, 30), (30, 1), (200, 301)])
@pytest.mark.parametrize("expected", [(80, 109), (33, 20), (100, 150), (1, 1)])
def test_resize_equals_installed_opencv(size, expected):
    cv2 = pytest.importorskip("cv2")
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    theirs = cv2.resize(pixels, expected[::-1], interpolation=cv2.INTER_LINEAR)
    assert torch.equal(resize_as_opencv(image, expected).permute(1, 2, 0), torch.from_numpy(theirs))
