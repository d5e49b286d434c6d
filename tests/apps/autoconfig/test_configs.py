"""Configs of runs without a config file."""

import hashlib
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from torchvision.models import detection, get_weight

import detlite
from detlite.apps.autoconfig.configs import config_for, derive_config
from detlite.apps.autoconfig.dataset_facts import DatasetFacts
from detlite.apps.autoconfig.image_values import ImageValues
from detlite.apps.autoconfig.rules import choose
from detlite.apps.cli.main import main
from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.files import read_checkpoint
from detlite.checkpoint.weight_catalog import COCO, coco_weights
from detlite.config import ConfigError, load_config
from detlite.data import DataError
from detlite.data.images.pixels import ImageOptions
from tests.data.servers import FileServer

from .builders import statistics


@pytest.fixture(autouse=True)
def timed(monkeypatch):
    """Record the configs whose steps are timed, and return 2 seconds for each."""
    timed = []
    name = "detlite.apps.autoconfig.time_budget.mean_step_seconds"
    monkeypatch.setattr(name, lambda cfg, _: timed.append(cfg) or 2.0)
    return timed


def by_data(facts, *opts):
    return config_for(facts, opts)[0]


def by_weights(facts, checkpoint, *opts):
    return config_for(facts, opts, checkpoint)[0]


@pytest.fixture
def facts(cpu) -> DatasetFacts:
    """400 images of 512 pixels, one per step on a CPU."""
    return DatasetFacts(statistics(size=(512, 512), sides=(28, 60)), statistics(images=100), cpu)


@pytest.fixture
def checkpoint() -> Checkpoint:
    """Weights of a person detector with masks and 17 keypoints, from a machine with a GPU."""
    opts = ["MODEL.MASK_ON", True, "MODEL.DEVICE", "cuda", "MODEL.WEIGHT_ROOT", "/elsewhere"]
    cfg = load_config("coco/keypoint_rcnn_R_50_FPN_1x.yaml", opts)
    return Checkpoint(Path("person.pth"), {}, config=cfg.dump())


def test_without_overrides_the_rules_apply(facts):
    cfg, choices, _ = config_for(facts, [])
    assert choices == choose(facts, {})
    values = {one.key: one.value for one in choices}
    assert list(cfg.MODEL.RPN.ANCHOR_SIZES) == values["MODEL.RPN.ANCHOR_SIZES"]
    assert (cfg.SOLVER.LR_SCHEDULE, cfg.SOLVER.IMS_PER_BATCH) == ("cosine", 1)
    assert (cfg.SOLVER.MAX_ITER, cfg.SOLVER.WARMUP_ITERS) == (4800, 100)
    assert cfg.SOLVER.BEST_METRIC == "segm/AP"


def test_other_keys_depend_on_the_overrides(facts):
    """Overrides of the command line are text."""
    solver = by_data(facts, "SOLVER.IMS_PER_BATCH", "8").SOLVER
    assert (solver.IMS_PER_BATCH, solver.BASE_LR, solver.MAX_ITER) == (8, 0.001, 600)
    solver = by_data(facts, "SOLVER.MAX_ITER", 300).SOLVER
    assert (solver.MAX_ITER, solver.WARMUP_ITERS, solver.CHECKPOINT_PERIOD) == (300, 30, 60)
    solver = by_data(facts, "SOLVER.MAX_EPOCHS", 0.5).SOLVER  # 200 steps
    assert (solver.MAX_ITER, solver.MAX_EPOCHS, solver.WARMUP_ITERS) == (None, 0.5, 20)
    assert by_data(facts, "MODEL.MASK_ON", False).SOLVER.BEST_METRIC == "bbox/AP"
    cascade = ("MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6, 0.7), "MODEL.CLS_AGNOSTIC_BBOX_REG", True)
    passes = [by_data(facts, *opts).MODEL.ROI_BOX_HEAD.PASSES for opts in ((), cascade)]
    assert passes == [2, 1]
    large = by_data(facts, "INPUT.MIN_SIZE_TEST", 1024).INPUT
    assert large.MIN_SIZE_TRAIN == (960, 992, 1024, 1056)
    assert large.MAX_SIZE_TRAIN == 1056


def test_background_images_count_if_they_are_used(facts):
    facts = replace(facts, train=replace(facts.train, empty=100))
    assert by_data(facts).SOLVER.MAX_ITER == 4800
    opts = "DATASETS.BACKGROUND_IMAGES", True
    assert by_data(facts, *opts).SOLVER.MAX_ITER == 6000
    assert by_data(facts, *opts, "SOLVER.MAX_EPOCHS", 1).SOLVER.WARMUP_ITERS == 50


@pytest.mark.parametrize(("bgr255", "std"), [(True, 1.0), (False, 0.226)])
def test_weights_of_three_channels_are_trained_on_others(facts, checkpoint, bgr255, std):
    content = yaml.safe_load(checkpoint.config)
    content["INPUT"] |= {"TO_BGR255": bgr255, "PIXEL_MEAN": [0.5] * 3, "PIXEL_STD": [std] * 3}
    checkpoint = replace(checkpoint, config=yaml.safe_dump(content))
    values = ImageValues(ImageOptions(channels=2, bits=12), (0.2, 0.4), (0.1, 0.3), "12 bits")
    facts = replace(facts, train=replace(facts.train, values=values))
    inputs = by_weights(facts, checkpoint).INPUT
    scale = 255 if bgr255 else 1
    mean, deviation = list(inputs.PIXEL_MEAN), list(inputs.PIXEL_STD)
    assert mean == pytest.approx([0.2 * scale, 0.4 * scale])
    # Inputs keep the standard deviation of the weights' training.
    gain = std / (0.226 * scale)
    assert deviation == pytest.approx([0.1 * scale * gain, 0.3 * scale * gain], abs=1e-3)
    assert inputs.IMAGE_BITS == 12
    assert by_weights(facts, checkpoint, "INPUT.IMAGE_BITS", 14).INPUT.IMAGE_BITS == 14


def test_a_custom_backbone_gets_no_other_weights(facts, timed):
    with_weights = replace(facts, machine=replace(facts.machine, pretrained=True))
    assert by_data(with_weights).MODEL.WEIGHT.startswith("package://")
    opts = "MODEL.BACKBONE.CONV_BODY", "R-50-FPN"
    cfg = by_data(with_weights, *opts)
    assert (cfg.MODEL.WEIGHT, cfg.MODEL.RESNETS.NORM) == ("", "GN")
    assert cfg.INPUT.PIXEL_MEAN == [0.485, 0.456, 0.406]
    assert not timed
    by_data(with_weights, *opts, "SOLVER.MAX_MINUTES", 1)
    assert {one.MODEL.BACKBONE.CONV_BODY for one in timed} == {"R-50-FPN"}


def test_several_processes_share_batches_and_do_not_time_steps(facts, timed):
    several = replace(facts, processes=3)
    cfg = by_data(several, "SOLVER.MAX_MINUTES", 5)
    assert (cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.TEST_PERIOD) == (3, 0)
    few = replace(several, train=statistics(images=2, size=(512, 512)))
    assert by_data(few).SOLVER.IMS_PER_BATCH == 3
    assert by_data(replace(few, processes=2)).SOLVER.IMS_PER_BATCH == 2
    assert not timed


def test_the_categories_of_a_retinanet_and_the_convention_of_weights_are_set(facts):
    content = load_config("coco/retinanet_R_50_FPN_1x.yaml").dump()
    weights = Checkpoint(Path("retina.pth"), {}, config=content, convention="torchvision")
    model = by_weights(facts, weights).MODEL
    assert len(facts.train.names) + 1 == model.RETINANET.NUM_CLASSES
    assert model.ROI_BOX_HEAD.NUM_CLASSES == 81  # unused
    assert model.CONVENTION == "torchvision"


def test_the_model_of_a_checkpoint_is_trained_by_the_rules(facts, checkpoint):
    content = yaml.safe_load(checkpoint.config)
    content["INPUT"]["TILE"], content["TEST"]["TILE"] = 256, 256
    tiled = by_weights(facts, replace(checkpoint, config=yaml.safe_dump(content)))
    assert (tiled.INPUT.TILE, tiled.TEST.TILE) == (256, 256)
    cfg = by_weights(facts, checkpoint, "SOLVER.BASE_LR", 0.1)
    assert (cfg.MODEL.BACKBONE.CONV_BODY, cfg.INPUT.MIN_SIZE_TEST) == ("R-50-FPN", 800)
    assert (cfg.SOLVER.OPTIMIZER, cfg.SOLVER.LR_SCHEDULE) == ("AdamW", "cosine")
    assert (cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.BASE_LR) == (1, 0.1)
    assert cfg.SOLVER.MAX_ITER == 2400  # 6 epochs of 400 images from pretrained weights
    assert cfg.DTYPE == "auto"
    # These depend on the machine and the batch.
    assert cfg.MODEL.DEVICE == "auto"
    assert cfg.MODEL.WEIGHT_ROOT == load_config().MODEL.WEIGHT_ROOT
    assert cfg.MODEL.BACKBONE.FREEZE_NORM_BELOW == 16


def test_heads_without_data_are_removed(facts, checkpoint):
    cfg = by_weights(facts, checkpoint)
    assert (cfg.MODEL.MASK_ON, cfg.MODEL.KEYPOINT_ON) == (True, False)
    same = statistics(keypoints=[f"point {number}" for number in range(17)], masks=0.4)
    cfg = by_weights(replace(facts, train=same, val=None), checkpoint)
    assert (cfg.MODEL.MASK_ON, cfg.MODEL.KEYPOINT_ON) == (False, True)
    other = replace(facts, train=statistics(keypoints=["nose"]), val=None)
    assert not by_weights(other, checkpoint).MODEL.KEYPOINT_ON


def test_minutes_with_a_checkpoint(facts, checkpoint):
    cfg = by_weights(facts, checkpoint, "SOLVER.MAX_MINUTES", 10)
    assert (cfg.SOLVER.MAX_MINUTES, cfg.SOLVER.MAX_ITER) == (10, None)
    assert cfg.SOLVER.WARMUP_ITERS == 30  # of 300 steps


def test_a_checkpoint_without_a_config_is_refused(facts):
    with pytest.raises(ConfigError, match=r"bare\.pth: does not contain the config of a detector"):
        by_weights(facts, Checkpoint(Path("bare.pth"), {}))


def test_images_are_checked_with_the_limits_of_the_run(make_coco_dataset):
    annotations, images = make_coco_dataset()
    opts = ["DATASETS.CATALOG", [{"name": "t", "annotations": str(annotations),
            "images": str(images)}], "DATASETS.TRAIN", ("t",), "DATASETS.TEST", ()]  # fmt: skip
    opts += ["MODEL.DEVICE", "cpu"]
    assert derive_config(opts, None)[0].DATASETS.ON_BAD_ANNOTATION == "error"
    with pytest.raises(DataError, match=r"none of its \d+ images can be used"):
        derive_config([*opts, "DATASETS.MAX_PIXELS", 10], None)
    for image in images.iterdir():
        image.write_bytes(b"")
    unchecked = derive_config([*opts, "DATASETS.CHECK_IMAGES", False], None)[0]
    assert unchecked.DATASETS.ON_BAD_ANNOTATION == "error"  # unchecked


def test_the_keys_of_a_retinanet_are_not_chosen(facts):
    with pytest.raises(ConfigError, match="the keys are chosen for R-CNNs"):
        by_data(facts, "MODEL.META_ARCHITECTURE", "RetinaNet")


@pytest.mark.parametrize(
    ("masks", "gpu", "name"),
    [
        (False, False, "FasterRCNN_MobileNet_V3_Large_FPN"),
        (False, True, "FasterRCNN_ResNet50_FPN_V2"),
        (True, False, "MaskRCNN_ResNet50_FPN_V2"),
    ],
)
def test_coco_weights_by_data_and_machine(masks, gpu, name):
    assert coco_weights(masks, gpu) == f"torchvision://{name}_Weights.COCO_V1"
    assert get_weight(f"{name}_Weights.COCO_V1").url


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Serve a MobileNetV3 Faster R-CNN with random weights instead of torchvision's host."""
    torch.manual_seed(0)
    state = detection.fasterrcnn_mobilenet_v3_large_fpn(
        weights=None, weights_backbone=None
    ).state_dict()
    state = {n: v for n, v in state.items() if not n.endswith("num_batches_tracked")}
    folder = tmp_path / "served"
    folder.mkdir()
    torch.save(state, folder / "w.pth")
    digits = hashlib.sha256((folder / "w.pth").read_bytes()).hexdigest()[:8]
    file = (folder / "w.pth").rename(folder / f"fasterrcnn_mobilenet_v3_large_fpn-{digits}.pth")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    server = FileServer(folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    weights = detection.FasterRCNN_MobileNet_V3_Large_FPN_Weights.COCO_V1
    monkeypatch.setattr(weights.value, "url", f"{server.url}/{file.name}")
    yield state
    server.shutdown()


@pytest.mark.slow
def test_training_starts_from_coco_weights(
    hub, cpu, make_coco_dataset, tmp_path, monkeypatch, caplog, capsys
):
    monkeypatch.setattr("detlite.apps.autoconfig.configs.resources", lambda *_: cpu)
    data = make_coco_dataset(images=2, size=(64, 96), masks=False, categories=("dog", "robot"))
    assert main(["init", "--data", str(data[0]), "--val", str(data[0]), "--weights", COCO]) == 0
    model = yaml.safe_load(capsys.readouterr().out)["MODEL"]
    assert model["BACKBONE"]["CONV_BODY"] == "MobileNetV3-Large-FPN"
    assert model["WEIGHT"].startswith("torchvision://FasterRCNN_MobileNet")
    assert model["REINIT_HEADS"] is True
    with caplog.at_level("INFO"):
        result = detlite.train(
            data=data, weights="coco", output_dir=tmp_path / "run",
            overrides={
                "MODEL.DEVICE": "cpu", "SOLVER.MAX_ITER": 1, "SOLVER.BASE_LR": 1e-12,
                "DATALOADER.NUM_WORKERS": 0, "INPUT.MIN_SIZE_TRAIN": [64], "SOLVER.WARMUP_ITERS": 0,
            },
        )  # fmt: skip
    assert "categories matched by name: dog;" in caplog.text
    assert "newly initialized: robot" in caplog.text
    cfg = load_config(tmp_path / "run" / "config.yaml")
    assert cfg.MODEL.WEIGHT == "torchvision://FasterRCNN_MobileNet_V3_Large_FPN_Weights.COCO_V1"
    assert cfg.MODEL.BACKBONE.CONV_BODY == "MobileNetV3-Large-FPN"
    trained = read_checkpoint(result.weights).model["roi_heads.box.predictor.cls_score.weight"]
    theirs = hub["roi_heads.box_predictor.cls_score.weight"]
    names = detection.FasterRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"]
    assert torch.allclose(trained[:2], theirs[[0, names.index("dog")]], atol=1e-6)
