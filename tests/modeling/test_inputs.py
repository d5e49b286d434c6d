from __future__ import annotations

import pytest
import torch

from detlite.modeling.inputs import InputNormalizer, check_images, prepare_targets

MEAN, STD = [100.0, 110.0, 120.0], [2.0, 3.0, 4.0]


def target(count: int = 2, size: tuple[int, int] = (8, 9)) -> dict[str, torch.Tensor]:
    return {
        "boxes": torch.tensor([[1.0, 1, 5, 5]]).repeat(count, 1),
        "labels": torch.ones(count, dtype=torch.int64),
        "masks": torch.ones(count, *size, dtype=torch.uint8),
    }


def prepare(targets, images=None, masks=True):
    images = [torch.zeros(3, 8, 9)] if images is None else images
    return prepare_targets(targets, images, 4, torch.device("cpu"), ("masks",) if masks else ())


# ---- images


def test_bgr_255():
    rgb = torch.randint(0, 256, (3, 4, 5), dtype=torch.uint8)
    batch = InputNormalizer(MEAN, STD, bgr255=True, divisibility=0)([rgb]).tensor
    for channel in range(3):
        wanted = (rgb[2 - channel].float() - MEAN[channel]) / STD[channel]
        torch.testing.assert_close(batch[0, channel], wanted)


def test_rgb_1():
    rgb = torch.randint(0, 256, (3, 4, 5), dtype=torch.uint8)
    batch = InputNormalizer([0.4, 0.5, 0.6], [0.2, 0.3, 0.4], bgr255=False, divisibility=0)([rgb])
    for channel in range(3):
        wanted = (rgb[channel] / 255 - (0.4, 0.5, 0.6)[channel]) / (0.2, 0.3, 0.4)[channel]
        torch.testing.assert_close(batch.tensor[0, channel], wanted)


@pytest.mark.parametrize("bgr255", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_and_uint8_agree(bgr255, dtype):
    image = torch.randint(0, 256, (3, 4, 5), dtype=torch.uint8)
    normalizer = InputNormalizer(MEAN, STD, bgr255, divisibility=32)
    bytes_batch = normalizer([image]).tensor
    float_batch = normalizer([image.to(dtype) / 255]).tensor
    assert float_batch.dtype == torch.float32
    torch.testing.assert_close(float_batch, bytes_batch, atol=1e-4, rtol=1e-4)


def test_padding_is_zero_after_the_normalisation():
    normalizer = InputNormalizer(MEAN, STD, bgr255=True, divisibility=4)
    batch = normalizer([torch.zeros(3, 5, 6, dtype=torch.uint8)])
    assert batch.tensor.shape == (1, 3, 8, 8)
    assert batch.sizes == [(5, 6)]
    assert (batch.tensor[:, :, :5, :6] != 0).all()
    assert batch.tensor[:, :, 5:].abs().sum() == batch.tensor[:, :, :, 6:].abs().sum() == 0


def test_images_are_left_as_they_were():
    image = torch.rand(3, 4, 5)
    before = image.clone()
    InputNormalizer(MEAN, STD, bgr255=True, divisibility=0)([image])
    assert torch.equal(image, before)


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (torch.zeros(1, 3, 4, 4), TypeError, r"images must be a list of tensors .* not Tensor"),
        ("image.png", TypeError, r"images must be a list .* not str"),
        ([], ValueError, "images is empty"),
        (["a.png"], TypeError, r"images\[0\] must be a uint8 or float tensor, not str"),
        (
            [torch.zeros(3, 4, 4), torch.zeros(3, 4, 4, dtype=torch.int64)],
            TypeError,
            r"images\[1\] must be a uint8 or float tensor, not torch.int64",
        ),
        ([torch.zeros(4, 4)], ValueError, r"images\[0\] must be \[3, H, W\].* not \[4, 4\]"),
        ([torch.zeros(1, 4, 4)], ValueError, r"not \[1, 4, 4\]"),
        ([torch.zeros(4, 4, 3)], ValueError, r"not \[4, 4, 3\]"),
        ([torch.zeros(3, 0, 4)], ValueError, r"H, W > 0, not \[3, 0, 4\]"),
    ],
)
def test_unusable_images(images, error, message):
    with pytest.raises(error, match=message):
        check_images(images)


# ---- targets


def test_targets_are_taken_without_what_is_not_needed():
    given = {**target(), "image_id": 7, "area": torch.zeros(2)}
    (ready,) = prepare([given])
    assert ready.keys() == {"boxes", "labels", "masks"}
    (ready,) = prepare([given], masks=False)
    assert ready.keys() == {"boxes", "labels"}


def test_targets_without_boxes_are_fine():
    (ready,) = prepare([target(0)])
    assert ready["boxes"].shape == (0, 4)


def test_targets_take_the_types_of_the_model():
    (ready,) = prepare(
        [
            {
                **target(),
                "boxes": target()["boxes"].double(),
                "labels": torch.ones(2, dtype=torch.int32),
            }
        ]
    )
    assert (ready["boxes"].dtype, ready["labels"].dtype) == (torch.float32, torch.int64)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": None}, r"targets\[0\] has no boxes"),
        ({"boxes": None, "labels": None}, "has no boxes and no labels"),
        ({"masks": None}, "has no masks"),
        ({"boxes": torch.zeros(2, 5)}, r"\['boxes'\] must be \[G, 4\], not \[2, 5\]"),
        ({"boxes": torch.zeros(4)}, r"\['boxes'\] must be \[G, 4\], not \[4\]"),
        ({"labels": torch.ones(3)}, r"2 boxes, but labels of shape \[3\]"),
        ({"labels": torch.ones(2, 1)}, r"2 boxes, but labels of shape \[2, 1\]"),
        ({"boxes": torch.tensor([[1.0, 1, 5, 5], [1, 1, 1, 5]])}, "x2 > x1 and y2 > y1"),
        ({"boxes": torch.tensor([[1.0, 1, 5, 5], [5, 5, 1, 1]])}, "x2 > x1 and y2 > y1"),
        ({"boxes": torch.tensor([[1.0, 1, 5, 5], [1, 1, NAN, 5]])}, "must be finite"),
        ({"boxes": torch.tensor([[1.0, 1, 5, 5], [1, 1, INF, 5]])}, "must be finite"),
        ({"labels": torch.tensor([0, 1])}, r"must lie in 1\.\.3 .*NUM_CLASSES is 4"),
        ({"labels": torch.tensor([1, 4])}, r"must lie in 1\.\.3"),
        ({"masks": torch.ones(2, 8, 8)}, r"must be \[2, 8, 9\] .* not \[2, 8, 8\]"),
        ({"masks": torch.ones(1, 8, 9)}, r"must be \[2, 8, 9\] .* not \[1, 8, 9\]"),
        ({"masks": torch.ones(2, 1, 8, 9)}, r"not \[2, 1, 8, 9\]"),
    ],
)
def test_unusable_target_is_named(change, message):
    changed = {**target(), **change}
    with pytest.raises(ValueError, match=message) as error:
        prepare([{name: value for name, value in changed.items() if value is not None}])
    assert "targets[0]" in str(error.value)


@pytest.mark.parametrize("name", ["boxes", "labels", "masks"])
def test_targets_are_tensors(name):
    with pytest.raises(TypeError, match=rf"targets\[0\]\['{name}'\] must be a tensor, not list"):
        prepare([{**target(), name: target()[name].tolist()}])


def test_the_wrong_one_of_several_is_named():
    images = [torch.zeros(3, 8, 9)] * 2
    with pytest.raises(ValueError, match=r"targets\[1\]\['labels'\]"):
        prepare([target(), {**target(), "labels": torch.zeros(2)}], images)


def test_training_needs_targets():
    with pytest.raises(ValueError, match="training needs targets"):
        prepare(None)


def test_one_target_for_each_image():
    with pytest.raises(ValueError, match="1 images, but 2 targets"):
        prepare([target(), target()])
