import pytest
import torch
from torchvision.tv_tensors import BoundingBoxes

from detlite.modeling.build import build_model
from detlite.modeling.preprocessing import Normalizer
from detlite.structures.masks.packed import PackedMasks
from tests.modeling.test_preprocessing import MEAN, STD, TRIANGLE, prepare, target


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (torch.zeros(1, 3, 4, 4), TypeError, r"images must be a list of tensors .* not Tensor"),
        ("image.png", TypeError, r"images must be a list .* not str"),
        ([], ValueError, "images is empty"),
        (["a.png"], TypeError, r"images\[0\] must be a uint8 or float tensor, not str"),
        ([torch.zeros(3, 4, 4), torch.zeros(3, 4, 4).long()], TypeError,
         r"images\[1\] must be a uint8 or float tensor, not torch.int64"),
        ([torch.zeros(4, 4)], ValueError, r"images\[0\] must be \[3, H, W\].* not \[4, 4\]"),
        ([torch.zeros(1, 4, 4)], ValueError, r"not \[1, 4, 4\]"),
        ([torch.zeros(4, 4, 3)], ValueError, r"not \[4, 4, 3\]"),
        ([torch.zeros(3, 0, 4)], ValueError, r"H, W > 0, not \[3, 0, 4\]"),
        ([torch.full((3, 4, 4), 200.0)], ValueError, r"but its values are from 200 to 200"),
        ([torch.rand(3, 9, 9) * 2 - 1], ValueError, r"must be float in 0\.\.1 .* from -0\.9"),
        ([torch.full((3, 4, 4), torch.nan).half()], ValueError, "are from nan to nan"),
    ],
)  # fmt: skip
def test_invalid_images(images, error, message):
    with pytest.raises(error, match=message):
        Normalizer(MEAN, STD, bgr255=True, divisibility=0)(images)


def test_invalid_images_in_training(tiny_config):
    with pytest.raises(TypeError, match=r"images\[0\] must be a uint8"):
        build_model(tiny_config()).train()(["a.png"], [target()])


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ([0.1, 0.2, 0.9, 1.0], "must be in pixels, not fractions"),
        ([1.0, 1, 5, 30], r"pixels of the image of 9 x 8: a box is \(1, 1, 5, 30\)"),
        ([-9.0, 1, 5, 5], r"a box is \(-9, 1, 5, 5\)"),
        ([9.2, 1, 9.5, 5], "a box is"),
    ],
)
def test_boxes_that_are_not_pixels_of_the_image(box, message):
    boxes = torch.tensor([box, box] if box[3] == 1 else [[1.0, 1, 5, 5], box])
    with pytest.raises(ValueError, match=rf"targets\[0\]\['boxes'\] .*{message}"):
        prepare([{**target(), "boxes": boxes}])


def test_boxes_may_exceed_the_image_a_little():
    boxes = torch.tensor([[-0.5, -1, 9.5, 8.9], [0, 0, 0.5, 1]])
    assert prepare([{**target(), "boxes": boxes}]).boxes.shape == (1, 2, 4)


def test_invalid_packed_masks():
    runs = PackedMasks.from_segmentations([TRIANGLE] * 2, 8, 9, as_rle=True)
    with pytest.raises(ValueError, match=r"targets\[0\]\['masks'\] has 2 masks for 1 boxes"):
        prepare([{**target(1), "masks": runs}])
    with pytest.raises(ValueError, match=r"does not have the size \[9, 8\]"):
        prepare([{**target(), "masks": runs}], [torch.zeros(3, 9, 8)])
    polygons = PackedMasks.from_segmentations([TRIANGLE] * 2, 8, 9, as_rle=False)
    with pytest.raises(ValueError, match=r"contains polygons, but .* torchvision's convention"):
        prepare([{**target(), "masks": polygons}], soft_masks=True)
    assert len(prepare([{**target(), "masks": runs}], soft_masks=True).masks) == 2


@pytest.mark.parametrize("count", [0, 1])
def test_different_numbers_of_keypoints(count):
    targets = [{**target(n), "keypoints": torch.zeros(n, k, 3)} for n, k in ((1, 5), (count, 4))]
    with pytest.raises(
        ValueError, match=r"targets\[1\]\['keypoints'\] has 4 .* but targets\[0\] has 5"
    ):
        prepare(targets, [torch.zeros(3, 8, 9)] * 2, required=("keypoints",))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.bool, torch.float32])
def test_labels_must_be_integers_of_any_type(dtype):
    none = prepare([{**target(0), "labels": torch.ones(0, dtype=dtype)}])
    assert none.labels.tolist() == [[0, 0]]
    one = [{**target(), "labels": torch.tensor([1, 1], dtype=dtype)}]
    if dtype == torch.uint16:
        assert prepare(one).labels[0, 1] == 1
        return
    with pytest.raises(TypeError, match=rf"targets\[0\]\['labels'\] .* not {dtype}"):
        prepare(one)


NAN, INF = float("nan"), float("inf")


def in_format(form, canvas):
    """Return boxes from (1, 1) to (5, 5) in a format of torchvision."""
    values = {"XYXY": [1.0, 1, 5, 5], "XYWH": [1.0, 1, 4, 4], "XYWHR": [1.0, 1, 4, 4, 0]}
    return BoundingBoxes(torch.tensor([values[form]] * 2), format=form, canvas_size=canvas)


def test_boxes_of_torchvision_state_their_format():
    truth = prepare([{**target(), "boxes": in_format("XYWH", (8, 9))}])
    assert truth.boxes.tolist() == prepare([target()]).boxes.tolist()


THIN = [1000.0, 1, 1000.00001, 5]  # empty in float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": None}, " has no boxes"),
        ({"boxes": None, "labels": None}, "has no boxes and no labels"),
        ({"masks": None}, "has no masks"),
        ({"boxes": torch.zeros(2, 5)}, r"\['boxes'\] must be \[G, 4\], not \[2, 5\]"),
        ({"boxes": torch.zeros(4)}, r"\['boxes'\] must be \[G, 4\], not \[4\]"),
        (
            {"labels": torch.ones(3)},
            r"\['labels'\] must be \[2\] for its boxes and image, not \[3\]",
        ),
        ({"labels": torch.ones(2, 1)}, r"must be \[2\] for its boxes and image, not \[2, 1\]"),
        ({"boxes": torch.tensor([[1.0, 1, 5, 5], [1, 1, 1, 5]])}, "x2 > x1 and y2 > y1"),
        ({"boxes": torch.tensor([[1.0, 1, 5, 5], [5, 5, 1, 1]])}, "x2 > x1 and y2 > y1"),
        ({"boxes": torch.tensor([[1.0, 1, 5, 5], [1, 1, NAN, 5]])}, "must be finite"),
        ({"boxes": torch.tensor([[1.0, 1, 5, 5], [1, 1, INF, 5]])}, "must be finite"),
        ({"boxes": torch.tensor([THIN] * 2, dtype=torch.float64)}, "x2 > x1 and y2 > y1"),
        ({"boxes": torch.full((2, 4), 1e300, dtype=torch.float64)}, "must be finite"),
        ({"labels": torch.tensor([0, 1])}, r"must be in 1\.\.3 .*NUM_CLASSES is 4"),
        ({"labels": torch.tensor([1, 4])}, r"must be in 1\.\.3"),
        ({"masks": torch.ones(2, 8, 8)}, r"must be \[2, 8, 9\] .* not \[2, 8, 8\]"),
        ({"masks": torch.ones(1, 8, 9)}, r"must be \[2, 8, 9\] .* not \[1, 8, 9\]"),
        ({"masks": torch.ones(2, 1, 8, 9)}, r"not \[2, 1, 8, 9\]"),
        ({"masks": torch.full((2, 8, 9), 0.3)}, r"must be 0 or 1 if they are torch\.float32"),
        ({"keypoints": torch.zeros(1, 5, 3)}, r"must be \[2, 5, 3\] for its boxes"),
        ({"keypoints": torch.zeros(2, 5, 2)}, r"\['keypoints'\] must be \[2, 5, 3\]"),
        ({"boxes": in_format("XYXY", (9, 8))}, r"the canvas size \(9, 8\), but the image \[8, 9\]"),
        ({"boxes": in_format("XYWHR", (8, 9))}, r"must be \[G, 4\], not \[2, 5\]"),
    ],
)
def test_invalid_target_is_named(change, message):
    changed = {**target(), **change}
    required = ("masks", "keypoints") if "keypoints" in change else ("masks",)
    given = {name: value for name, value in changed.items() if value is not None}
    with pytest.raises(ValueError, match=rf"targets\[0\].*{message}"):
        prepare([given], required=required)


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        ([[target()]], TypeError, r"targets\[0\] must be a dict of tensors, not list"),
        ([target(), target()], ValueError, "1 images, but 2 targets"),
        (None, ValueError, "training needs targets"),
        *(([{**target(), name: [1]}], TypeError, rf"\['{name}'\] must be a tensor, not list")
          for name in ("boxes", "labels", "masks")),
    ],
)  # fmt: skip
def test_one_dict_of_tensors_per_image(targets, error, message):
    with pytest.raises(error, match=message):
        prepare(targets)
