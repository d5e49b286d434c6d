import copy

import pytest
import torch
from torch import Tensor, nn

from detlite import build_model, optimize
from detlite.modeling.preprocessing import Normalizer, prepare_proposals, prepare_targets
from detlite.structures.instances import GroundTruth, PaddedBatchImages
from detlite.structures.masks.packed import PackedMasks

MEAN, STD = [100.0, 110.0, 120.0], [2.0, 3.0, 4.0]


def target(count: int = 2, size: tuple[int, int] = (8, 9)) -> dict[str, Tensor]:
    return {
        "boxes": torch.tensor([[1.0, 1, 5, 5]]).repeat(count, 1),
        "labels": torch.ones(count, dtype=torch.int64),
        "masks": torch.ones(count, *size, dtype=torch.uint8),
    }


def prepare(targets, images=None, required=("masks",), **kwargs) -> GroundTruth:
    images = [torch.zeros(3, 8, 9)] if images is None else images
    return prepare_targets(targets, images, 4, required, **kwargs)


# ---- images


@pytest.mark.parametrize("bgr255", [False, True])
def test_normalized_channels(bgr255):
    mean, std = (MEAN, STD) if bgr255 else ([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    rgb = torch.randint(0, 256, (3, 4, 5), dtype=torch.uint8)
    batch = Normalizer(mean, std, bgr255=bgr255, divisibility=0)([rgb]).pixels
    values = rgb.flip(0).float() if bgr255 else rgb / 255
    for channel in range(3):
        expected = (values[channel] - mean[channel]) / std[channel]
        torch.testing.assert_close(batch[0, channel], expected)


@pytest.mark.parametrize("bgr255", [False, True])
def test_images_may_require_a_gradient(bgr255):
    image = torch.rand(3, 4, 5, requires_grad=True)
    Normalizer(MEAN, STD, bgr255=bgr255, divisibility=4)([image]).pixels.sum().backward()
    scale = (255 if bgr255 else 1) / torch.tensor(STD[::-1] if bgr255 else STD)
    torch.testing.assert_close(image.grad, scale[:, None, None].expand_as(image))


def test_images_are_at_the_top_left_of_the_batch():
    images = [torch.rand(3, *size) for size in ((5, 6), (9, 3), (1, 1))]
    normalizer = Normalizer(MEAN, STD, bgr255=True, divisibility=8)
    batch = normalizer(images)
    assert batch.pixels.shape == (3, 3, 16, 8)
    assert batch.sizes.tolist() == [[5, 6], [9, 3], [1, 1]]
    assert batch.sizes.dtype == torch.int64
    left = batch.pixels.clone()
    for index, (image, (height, width)) in enumerate(zip(images, batch.sizes, strict=True)):
        alone = normalizer([image])
        assert torch.equal(alone.sizes[0], batch.sizes[index])
        own = left[index, :, :height, :width]
        torch.testing.assert_close(own, alone.pixels[0, :, :height, :width])
        own.zero_()
    assert not left.any()  # zeros after normalization


@pytest.mark.parametrize(("divisibility", "shape"), [(0, (9, 7)), (4, (12, 8))])
def test_part_of_a_batch_is_padded_like_the_whole(divisibility, shape):
    images = PaddedBatchImages([torch.zeros(3, 5, 7, dtype=torch.uint8)], (9, 6))
    batch = Normalizer(MEAN, STD, bgr255=True, divisibility=divisibility)(images)
    assert batch.pixels.shape[2:] == shape
    assert batch.sizes.tolist() == [[5, 7]]


@pytest.mark.parametrize("move", [copy.deepcopy, nn.Module.double, nn.Module.cpu])
def test_images_follow_the_memory_format_of_the_weights(tiny_config, move):
    model, images = build_model(tiny_config()), [torch.rand(3, 40, 50), torch.rand(3, 30, 60)]
    assert model.normalizer(images).pixels.is_contiguous()
    model = move(model.to(memory_format=torch.channels_last))
    pixels = model.normalizer(images).pixels
    assert pixels.is_contiguous(memory_format=torch.channels_last)
    assert not pixels.is_contiguous()
    model.to(memory_format=torch.contiguous_format)
    assert model.normalizer(images).pixels.is_contiguous()


def test_float64_model():
    normalizer = Normalizer(MEAN, STD, bgr255=True, divisibility=0).double()
    assert normalizer([torch.rand(3, 4, 5)]).pixels.dtype == normalizer.dtype == torch.float64
    normalizer.bfloat16()
    with torch.autocast("cpu"):
        assert normalizer([torch.rand(3, 4, 5)]).pixels.dtype == normalizer.dtype == torch.float32


def test_a_model_in_a_half_type_is_refused_with_the_way_to_use_it(tiny_config):
    model = build_model(tiny_config()).eval().to(torch.float16)
    with pytest.raises(TypeError, match=r"converted to torch\.float16.* detlite\.optimize\(model"):
        model([torch.rand(3, 64, 64)])
    optimize(model, "bfloat16").detect([torch.rand(3, 64, 64)])


# ---- targets


def test_targets_are_padded():
    first = {
        "boxes": torch.tensor([[1.0, 2, 3, 4]]),
        "labels": torch.tensor([3]),
        "masks": torch.randint(0, 2, (1, 8, 9), dtype=torch.uint8),
        "keypoints": torch.rand(1, 5, 3),
    }
    second = {
        "boxes": torch.tensor([[0.0, 1, 2, 3], [4, 5, 6, 7], [1, 1, 2, 2]]),
        "labels": torch.tensor([1, 2, 1]),
        "masks": torch.randint(0, 2, (3, 6, 12), dtype=torch.uint8),
        "keypoints": torch.rand(3, 5, 3),
    }
    none = {name: value[:0] for name, value in first.items()}
    inputs = [first, second, none]
    images = [torch.zeros(3, *size) for size in ((8, 9), (6, 12), (8, 9))]
    truth = prepare(inputs, images, ("masks", "keypoints"))
    assert truth.boxes.shape == (3, 3, 4)
    assert truth.labels.tolist() == [[3, 0, 0], [1, 2, 1], [0, 0, 0]]
    assert truth.valid.sum(dim=1).tolist() == [1, 3, 0]
    for index, own in enumerate(inputs):
        count = len(own["labels"])
        assert torch.equal(truth.boxes[index, :count], own["boxes"])
        assert torch.equal(truth.keypoints[index, :count], own["keypoints"])
        assert not truth.boxes[index, count:].any()
        assert not truth.keypoints[index, count:].any()
        packed = truth.masks.select(torch.arange(3 * index, 3 * index + count))
        assert torch.equal(packed.bitmaps(*images[index].shape[1:]), own["masks"])
    assert len(truth.masks) == 9


def test_types_and_the_smallest_length():
    """Targets are converted to the types of the model, and padded to at least two objects."""
    inputs = {
        **target(1),
        "boxes": target(1)["boxes"].double(),
        "labels": torch.ones(1, dtype=torch.int32),
        "keypoints": torch.ones(1, 1, 3, dtype=torch.int64),
    }
    for dtype in (torch.float32, torch.float64):
        truth = prepare([inputs], required=("masks", "keypoints"), dtype=dtype)
        assert truth.boxes.dtype == truth.keypoints.dtype == dtype
        assert truth.labels.tolist() == [[1, 0]]
        assert truth.labels.dtype == torch.int64
        assert truth.masks.bitmaps(8, 9).sum(dim=(1, 2)).tolist() == [72, 0]


TRIANGLE = [[1.0, 1, 5, 1, 5, 5]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32, "rle", "polygons"])
def test_masks_of_every_type(dtype):
    masks = torch.randint(0, 2, (2, 8, 9))
    if isinstance(dtype, str):
        inputs = PackedMasks.from_segmentations([TRIANGLE] * 2, 8, 9, as_rle=dtype == "rle")
        masks = inputs.bitmaps(8, 9)
    else:
        inputs = masks.to(dtype)
    truth = prepare([{**target(), "masks": inputs}])
    assert torch.equal(truth.masks.bitmaps(8, 9).long(), masks.long())


# ---- proposals


def test_proposals_are_padded():
    boxes = torch.tensor([[1.0, 2, 3, 4], [5, 6, 9, 9]])
    empty = torch.tensor([[1.0, 1, 1, 5], [4, 4, 3, 9]])  # dropped
    result = prepare_proposals([torch.cat([empty, boxes[:1]]), empty, boxes.double()], 3)
    assert result.boxes.dtype == result.scores.dtype == torch.float32
    assert result.valid.tolist() == [[True, False], [False, False], [True, True]]
    assert torch.equal(result.boxes[2], boxes)
    assert torch.equal(result.boxes[0, :1], boxes[:1])
    assert not result.boxes[~result.valid].any()
    assert not result.scores.any()
    assert prepare_proposals([boxes], 1, torch.float64).boxes.dtype == torch.float64
