"""Own fields of objects: what a user adds to targets and detections, and where it arrives.

`code` is the label of an object, and `center` the center of its box, so that each value shows if it
belongs to its object, and if its coordinates have followed the image.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from detlite import Predictor, build_model
from detlite.apps.batch_predict.predict_images import coco_objects
from detlite.config import ConfigError
from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.options import DatasetOptions
from detlite.data.transforms.copy_paste import paste_objects
from detlite.data.transforms.custom import apply_custom, wrap_torchvision
from detlite.data.transforms.detection_transform import DetectionTransform
from detlite.data.transforms.resize import RandomShortestSize
from detlite.data.transforms.rotate import RandomRotation
from detlite.data.transforms.targets import crop
from detlite.data.transforms.tiles import TrainingTiles
from detlite.evaluation import to_coco_results
from detlite.evaluation.results import concatenate_results
from detlite.files.errors import DataError
from detlite.inference.image_detector import ResizingDetector
from detlite.inference.options import View
from detlite.inference.tiling import TiledDetector
from detlite.inference.tta import AugmentedDetector
from detlite.modeling.preprocessing import prepare_targets
from detlite.modeling.roi_heads.roi_head import RoIHead
from detlite.structures import boxes as box_ops
from detlite.structures.object_fields import OBJECT_FIELDS, ObjectField, move_points, resizing
from detlite.structures.padding import gather
from tests.builders import coco_content, coco_object, write_text
from tests.data.pixel_scenes import scene


@OBJECT_FIELDS.register("code")
class Code(ObjectField):
    shape = ()

    def write(self, value):
        return f"kind {int(value)}"


@OBJECT_FIELDS.register("center")
class Center(ObjectField):
    shape = (2,)

    def move(self, values, matrix):
        return move_points(values, matrix)


def centers(boxes):
    return (boxes[..., :2] + boxes[..., 2:]) / 2


def with_fields(number=0, size=(60, 70)):
    """Return an image and a target without masks and keypoints, but with own fields."""
    image, target, _ = scene(number, size, number)
    target = {name: target[name] for name in ("boxes", "labels", "image_id", "size")}
    own = {"code": target["labels"].float(), "center": centers(target["boxes"])}
    return image, target | own


def test_points_move_in_full_precision():
    points = torch.tensor([[[10.25, 20.125, 1]]])
    half = resizing((50, 100), (100, 100), flip_x=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert move_points(points, half).tolist() == [[[89.75, 40.25, 1]]]


# Steps that do not clip boxes keep their centers.
@pytest.mark.parametrize(
    ("step", "clips"),
    [
        (DetectionTransform(RandomShortestSize([90], 200)), False),
        (DetectionTransform(RandomShortestSize([40], 200), flip=(1.0, 1.0)), False),
        (DetectionTransform(flip=(1.0, 0.0), rotation=RandomRotation(0.0, (0, 0, 0))), False),
        (DetectionTransform(rotation=RandomRotation(30.0, (0, 0, 0))), True),
        (lambda *sample: crop(*sample, (10, 12, 40, 40)), True),
        (lambda *sample: TrainingTiles(40).cut(*sample, 1), True),
    ],
)
def test_transforms_select_and_move(step, clips):
    compared = 0
    for seed in range(5):
        image, target = step(*with_fields(seed))
        assert len(target["boxes"]) > 0
        assert target["code"].tolist() == target["labels"].tolist()
        assert target["center"].shape == (len(target["code"]), 2)
        whole = torch.ones(len(target["code"]), dtype=torch.bool)
        if clips:
            limit = torch.tensor([image.shape[2], image.shape[1]])
            boxes = target["boxes"]
            whole = ((boxes[:, :2] > 0) & (boxes[:, 2:] < limit)).all(1)
        compared += int(whole.sum())
        expected = centers(target["boxes"])[whole]
        torch.testing.assert_close(target["center"][whole], expected, atol=1e-3, rtol=0)
    assert compared


def test_pasted_objects_keep_their_fields():
    below, above = scene(0, (60, 70), 0), scene(1, (60, 70), 1)
    targets = [one | {"code": one["labels"].float()} for _, one, _ in (below, above)]
    _, target = paste_objects(below[0], targets[0], above[0], targets[1])
    assert len({*(target["labels"] // 10).tolist()}) == 2
    assert target["code"].tolist() == target["labels"].tolist()


def test_pipelines_of_other_libraries_select():
    from torchvision.transforms import v2

    pipeline = v2.Compose([v2.RandomCrop((30, 30)), v2.SanitizeBoundingBoxes(min_size=2)])
    transforms = [("mine", wrap_torchvision(pipeline))]
    image, target = with_fields()
    with pytest.raises(ConfigError, match="wrapped pipelines do not move center"):
        apply_custom(transforms, image, target)
    del target["center"]
    _, target = apply_custom(transforms, image, target)
    assert 0 < len(target["boxes"]) < 8
    assert target["code"].tolist() == target["labels"].tolist()


def prepared(*targets, required=()):
    images = [torch.zeros(3, 60, 70, dtype=torch.uint8)] * len(targets)
    return prepare_targets(targets, images, 100, required)


def test_ground_truth_is_padded():
    targets = [with_fields(number)[1] for number in (0, 1)]
    keep = torch.arange(8) < 3
    targets[1] |= {n: targets[1][n][keep] for n in ("boxes", "labels", "code", "center")}
    truth = prepared(*targets)
    assert truth.extra_fields["code"].tolist() == truth.labels.tolist()
    assert truth.extra_fields["center"].shape == (2, 8, 2)
    assert torch.equal(truth.extra_fields["center"][1, 3:], torch.zeros(5, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"center": torch.zeros(8, 3)}, r"targets\[1\]\['center'\] must be \[8, 2\] for its boxes"),
        (
            {"center": torch.zeros(7, 2)},
            r"\['center'\] must be \[8, 2\] for its boxes and image, not \[7, 2",
        ),
        ({"center": [[0, 0]] * 8}, r"\['center'\] must be a tensor, not list"),
        ({"center": None}, r"only one of targets\[0\] and targets\[1\] has 'center'"),
        ({"code": None}, r"has no code: declare it in OBJECT_FIELDS, and list it as `fields`"),
    ],
)
def test_wrong_fields_of_targets_are_refused(change, message):
    first, second = with_fields()[1], with_fields(1)[1] | change
    second = {name: value for name, value in second.items() if value is not None}
    with pytest.raises((TypeError, ValueError), match=message):
        prepared(first, second, required=("code",))


def test_an_unknown_entry_of_a_target_is_logged_once(caplog):
    for _ in range(2):
        prepared(with_fields()[1] | {"unheard": torch.zeros(8), "file_name": "a.jpg"})
    (record,) = caplog.records
    assert record.message.startswith("targets[0]['unheard'] is not used: an own field")


@pytest.mark.parametrize("name", ["boxes", "score", "image_id"])
def test_names_of_other_entries_are_refused(name):
    with pytest.raises(ValueError, match=f"an object field cannot be called '{name}'"):
        ObjectField(name)


def read_dataset(folder, *rows):
    boxes = ([10 * n, 5, 8, 8] for n in range(len(rows)))
    objects = [coco_object(box, **row) for box, row in zip(boxes, rows, strict=True)]
    content = coco_content(objects, (1,), (30, 60), ["cat"])
    file = write_text(folder / "set.json", json.dumps(content))
    options = DatasetOptions(masks=False, check_images=False, fields=("code", "center"))
    return CocoDataset(file, folder, options)


def test_annotations_are_read(tmp_path):
    row = {"code": 7, "center": [14.0, 9]}
    dataset = read_dataset(tmp_path, row, row | {"iscrowd": 1}, row | {"code": 9})
    target = dataset._target(0, (30, 60))
    assert target["code"].tolist() == [7, 9]
    assert target["center"].tolist() == [[14, 9], [14, 9]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"code": 1},
            r"annotation 2 \(image 1\): cannot read the field 'center' .*: it is missing",
        ),
        ({"code": 1, "center": [1]}, r"annotation 2 .*: its shape is \[1\], not \[2\]"),
        ({"code": "red", "center": [1, 2]}, r"annotation 2 .*'code' of DATASETS.CATALOG, set: "),
        ({"code": None, "center": [1, 2]}, r"annotation 2 .*'code' of DATASETS.CATALOG, set: "),
    ],
)
def test_annotations_without_a_valid_value_are_named(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        read_dataset(tmp_path, {"code": 1, "center": [1, 2]}, row)


class CodeHead(RoIHead):
    target, predicted = "code", ("code", "center")

    def losses(self, logits, packing, samples, truth):
        codes = packing.pack(gather(truth.extra_fields["code"], samples.gt_index))
        error = (logits[:, 0] - codes).square()
        return {"loss_code": torch.where(packing.valid, error, 0).mean()}

    def outputs(self, logits, labels):
        return labels.float()

    def fields(self, outputs, boxes):
        return {"code": outputs, "center": centers(boxes)}


def head_model(tiny_config, *opts):
    """Return a model with an own head."""
    model = build_model(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0, *opts))
    channels = model.roi_heads.box.feature_extractor.out_channels
    model.roi_heads.add_module("code", CodeHead(None, nn.Linear(channels, 1)))
    return model


def box_model(tiny_config, *opts):
    """Return a model whose predicted boxes have fields before any are suppressed."""
    model = build_model(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0, *opts))
    original = model.predict_boxes

    def predict_boxes(features, images, proposals=None):
        found = original(features, images, proposals)
        boxes = box_ops.clip(found.boxes, images.sizes)
        own = {"code": found.labels.float(), "center": centers(boxes)}
        return replace(found, boxes=boxes, extra_fields=own)

    model.predict_boxes = predict_boxes
    return model


both_models = pytest.mark.parametrize("make", [head_model, box_model])
IMAGE = (80, 120)
VIEWS = [View(64, 1000), View(72, 1000, flip=True)]
DETECTORS = {
    "model": lambda model: model,
    "resized": lambda model: ResizingDetector(model, VIEWS[0]),
    "views": lambda model: AugmentedDetector(model, VIEWS),
    "tiles": lambda model: TiledDetector(ResizingDetector(model, VIEWS[0]), 64),
}


@both_models
@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_carry_fields(tiny_config, make, name):
    detector = DETECTORS[name](make(tiny_config).eval())
    image = torch.randint(0, 255, (3, *IMAGE), dtype=torch.uint8)
    (found,) = detector.detect([image])
    assert len(found.boxes) > 5
    own = found.extra_fields
    assert own["code"].tolist() == found.labels.tolist()
    distance = (own["center"] - centers(found.boxes)).abs().amax(1)
    # A union of tiles has the fields of its highest-scoring part.
    exact = {"tiles": 0.3}.get(name, 1.0)
    assert (distance < 0.01).float().mean() >= exact


@both_models
def test_predictions_and_results_contain_fields(tiny_config, make):
    pytest.importorskip("pandas")
    model = make(tiny_config).eval()
    model.categories = [{"id": 10 * k, "name": f"kind {k}"} for k in (1, 2, 3)]
    image = torch.randint(0, 255, (3, *IMAGE), dtype=torch.uint8)
    (output,) = model([image])
    assert output["code"].tolist() == output["labels"].tolist()
    prediction = Predictor(model, 64, 1000, rle=True)(image)
    assert prediction.extra_fields.keys() == {"code", "center"}
    assert prediction.to_pandas()["code"].tolist() == prediction["names"]
    torch.testing.assert_close(
        prediction["center"], centers(prediction["boxes"]), atol=0.01, rtol=0
    )
    rows = coco_objects(5, prediction, 0.5)
    assert [row["code"] for row in rows] == prediction["names"]
    with torch.no_grad():
        (found,) = model.detect([image])
    sizes = IMAGE, (40, 60)
    results = to_coco_results(found, 5, *sizes, model.categories)
    results = concatenate_results([results[np.arange(3)], results[np.arange(4, 6)]])
    assert results.fields["code"].tolist() == (results.category_ids / 10).tolist()
    for row in results.to_coco(1, 4):
        x, y, w, h = row["bbox"]
        assert row["center"] == pytest.approx([x + w / 2, y + h / 2], abs=0.01)
        assert row["code"] == f"kind {row['category_id'] // 10}"


def test_outputs_of_the_model_are_left_out_of_results_of_datasets(tiny_config):
    model = build_model(tiny_config("TEST.EXTRA_OUTPUTS", ("class_scores", "features"))).eval()
    (found,) = model.detect([torch.rand(3, *IMAGE)])
    assert found.extra_fields.keys() == {"class_scores", "features"}
    assert not to_coco_results(found, 5, IMAGE, IMAGE, [{"id": k} for k in (1, 2, 3)]).fields


@pytest.mark.parametrize("static", [False, True])
def test_a_head_trains_on_a_field(tiny_config, static):
    model = head_model(tiny_config).train()
    model.static_shapes = static
    assert model.required_targets == ("masks", "code")
    images, targets, _ = zip(*(scene(number, IMAGE, number) for number in range(2)), strict=True)
    for target in targets:
        target["labels"] = target["labels"] % 3 + 1
        target["code"] = target["labels"].float()
    losses = model([*images], targets)
    losses["loss_code"].backward()
    assert model.roi_heads.code.predictor.weight.grad.abs().sum() > 0
    del targets[1]["code"]
    with pytest.raises(ValueError, match=r"targets\[1\] has no code"):
        model([*images], targets)
