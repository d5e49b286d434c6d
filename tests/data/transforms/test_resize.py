"""Target sizes, and resizing like Pillow and OpenCV."""

import numpy as np
import pytest
import torch
from PIL import Image

from detlite.data.transforms.resize import (
    RandomShortestSize,
    get_size,
    resize_image,
    resize_shortest,
)
from detlite.errors import ConfigError


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((480, 640), (800, 1067)),
        ((640, 480), (1067, 800)),
        ((427, 640), (800, 1199)),
        ((375, 500), (800, 1067)),
        ((300, 900), (444, 1333)),  # limited by the long side
        ((800, 800), (800, 800)),
        ((1, 5000), (1, 1333)),
    ],
)
def test_get_size(size, expected):
    """OpenCV's sizes are those of mmcv: int(side * scale + 0.5) with one scale for both sides."""
    assert get_size(size, 800, 1333) == get_size(size, 800, 1333, "opencv") == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [((320, 640), (667, 1333)), ((44, 88), (666, 1333)), ((161, 434), (495, 1333))],
)
def test_sides_halfway_between_two_pixels(size, expected):
    """The last bit of 666.5 decides, as in detectron2."""
    assert get_size(size, 800, 1333) == expected


@pytest.mark.parametrize(("size", "min_size"), [((47, 64), 80), ((64, 47), 30)])
def test_resize_equals_pillow(size, min_size):
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    resized = resize_shortest(image, min_size, 1000)
    height, width = resized.shape[1:]
    pil_image = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((width, height), 2)
    assert torch.equal(resized.permute(1, 2, 0), torch.from_numpy(np.array(pil_image)))


def test_every_short_side_is_drawn():
    transform = RandomShortestSize([16, 24, 32], 100)
    torch.manual_seed(0)
    seen = {transform((32, 48))[0] for _ in range(30)}
    assert seen == {16, 24, 32}


# Results of cv2.resize (OpenCV 5.0, INTER_LINEAR) for a 3 x 4 image of 0, 20, 40, ...
_OPENCV_RESULTS = {
    (2, 3): [[23, 50, 76], [143, 170, 196]],
    (5, 6): [[0, 10, 23, 37, 50, 60], [32, 42, 55, 69, 82, 92], [80, 90, 103, 117, 130, 140],
             [128, 138, 151, 165, 178, 188], [160, 170, 183, 197, 210, 220]],
}  # fmt: skip


@pytest.mark.parametrize("size", _OPENCV_RESULTS)
def test_resize_equals_recorded_opencv(size):
    image = (torch.arange(12) * 20).view(1, 3, 4).to(torch.uint8)
    assert resize_image(image, size, "opencv").tolist() == [_OPENCV_RESULTS[size]]


@pytest.mark.parametrize("size", [(47, 64), (64, 47), (1, 30), (30, 1), (200, 301)])
@pytest.mark.parametrize("expected", [(80, 109), (33, 20), (100, 150), (1, 1)])
def test_resize_equals_installed_opencv(size, expected):
    cv2 = pytest.importorskip("cv2")
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    theirs = cv2.resize(pixels, expected[::-1], interpolation=cv2.INTER_LINEAR)
    assert torch.equal(
        resize_image(image, expected, "opencv").permute(1, 2, 0), torch.from_numpy(theirs)
    )


def test_an_enlarged_image_has_a_limit():
    with pytest.raises(ConfigError, match=r"images become 60000x60000 .* reduce INPUT\.MIN_SIZE"):
        resize_image(torch.zeros(3, 2, 2, dtype=torch.uint8), (60_000, 60_000), "round")
