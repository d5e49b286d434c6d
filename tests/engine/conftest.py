"""Fixtures: a toy detector, a dataset that it solves, and a harder one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from yacs.config import CfgNode

from detlite.config import load_config
from detlite.conventions import convention_of
from detlite.data import build_dataset, build_train_dataset
from detlite.engine.hooks import Hook
from detlite.engine.rng import seed_all
from detlite.engine.run import TrainingRun
from tests.builders import coco_content, coco_object, rectangle, write_coco_dataset
from tests.engine.toy import ToyDetector, new_toy

ROOT = Path(__file__).parents[2]
KEYPOINT_NAMES = ["left_top", "right_top", "middle", "left_bottom", "right_bottom"]


@pytest.fixture
def toy() -> ToyDetector:
    """Toy detector with weights from seed 0."""
    return new_toy()


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """Folder with a dataset of 7 images, each with one red or green block."""
    folder = tmp_path / "blocks"
    folder.mkdir()
    rng = np.random.default_rng(0)
    content = coco_content((), range(100, 107), categories={7: "red", 9: "green"})
    for number, image in enumerate(content["images"]):
        width, height = 24, 20 + 2 * number
        x, y = (int(v) for v in rng.integers(2, 6, 2))
        w, h = (int(v) for v in rng.integers(8, 14, 2))
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[y : y + h, x : x + w, number % 2] = 255
        Image.fromarray(pixels).save(folder / f"{number}.png")
        image |= {"file_name": f"{number}.png", "height": height, "width": width}
        row = coco_object((x, y, w, h), (7, 9)[number % 2], image["id"], id=number + 1)
        content["annotations"].append(row | {"segmentation": rectangle(x, y, w, h)})
    (folder / "blocks.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def make_cfg(blocks: Path, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that loads a config for `blocks` with further overrides."""

    def make(*opts: Any) -> Any:
        entry = {"annotations": "blocks.json", "images": "."}
        defaults = [
            "OUTPUT_DIR", str(tmp_path / "run"), "MODEL.DEVICE", "cpu", "MODEL.MASK_ON", True,
            "DATASETS.ROOT", str(blocks), "DATASETS.TRAIN", ("train",), "DATASETS.TEST", ("val",),
            "DATASETS.CATALOG", [{"name": "train", **entry}, {"name": "val", **entry}],
            "DATALOADER.NUM_WORKERS", 0, "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3,
            "INPUT.MIN_SIZE_TRAIN", (20, 30), "INPUT.MIN_SIZE_TEST", 40, "SOLVER.STEPS", (3,),
            "SOLVER.MAX_ITER", 4, "SOLVER.IMS_PER_BATCH", 2, "SOLVER.BASE_LR", 0.1,
            "SOLVER.WARMUP_ITERS", 2, "SOLVER.LOG_PERIOD", 1, "TEST.IMS_PER_BATCH", 2,
            "TEST.OPTIMIZE", False,  # not possible for the toy detector
        ]  # fmt: skip
        cfg = load_config(None, [*defaults, *opts])
        Path(cfg.OUTPUT_DIR).mkdir(exist_ok=True)
        return cfg

    return make


@pytest.fixture
def make_sets() -> Callable[[Any], tuple[Any, list[Any]]]:
    """Return a function that builds the training set and the test sets of a config."""

    def make(cfg: Any) -> tuple[Any, list[Any]]:
        tests = [build_dataset(cfg, name, train=False) for name in cfg.DATASETS.TEST]
        return build_train_dataset(cfg), tests

    return make


TrainToy = Callable[..., tuple[CfgNode, dict[str, Any]]]


@pytest.fixture
def train_toy(make_cfg: Callable[..., CfgNode], make_sets: Callable[..., Any]) -> TrainToy:
    """Return a function that trains a toy detector and returns the config and the metrics."""

    def run(
        *opts: Any,
        resume: bool = False,
        model: ToyDetector | None = None,
        seed: int = 0,
        hooks: Sequence[Hook] = (),
    ) -> tuple[CfgNode, dict[str, Any]]:
        cfg = make_cfg(*opts)
        train_set, test_sets = make_sets(cfg)
        model = model or new_toy()
        model.categories = train_set.categories
        model.convention = convention_of(cfg)
        seed_all(seed)
        return cfg, TrainingRun(cfg, model, train_set, test_sets, hooks).train(resume)

    return run


@pytest.fixture(scope="session")
def plates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a dataset of images of two bright plates, with keypoints at their centers."""
    folder = tmp_path_factory.mktemp("plates")
    options = {"categories": ["plate"], "keypoints": KEYPOINT_NAMES}
    write_coco_dataset(folder, "plates", 6, (64, 80), objects=1, sides=(24, 33), **options)
    return folder / "plates"


@pytest.fixture
def plates_config(
    tiny_config: Callable[..., CfgNode], plates: Path, tmp_path: Path, device: str
) -> Callable[..., CfgNode]:
    """Return a function that loads a config of a tiny model for `plates`, with overrides."""

    def load(*opts: Any, **kinds: Any) -> CfgNode:
        entry = {"name": "plates", "annotations": "annotations.json", "images": "images"}
        return tiny_config(
            "MODEL.DEVICE", device, "OUTPUT_DIR", str(tmp_path),
            "DATASETS.ROOT", str(plates), "DATASETS.CATALOG", [entry],
            "DATASETS.TRAIN", ("plates",), "DATASETS.TEST", ("plates",),
            "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 2, "DATALOADER.NUM_WORKERS", 0,
            "INPUT.MIN_SIZE_TRAIN", (64,), "INPUT.MIN_SIZE_TEST", 64, "SOLVER.OPTIMIZER", "AdamW",
            "SOLVER.BASE_LR", 2e-3, "SOLVER.WARMUP_ITERS", 4, "SOLVER.STEPS", (),
            "SOLVER.IMS_PER_BATCH", 2, "SOLVER.MAX_ITER", 16, "SOLVER.LOG_PERIOD", 1,
            "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 5, "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION", 56,
            "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", False,
            "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", (16, 16), *opts, **kinds,
        )  # fmt: skip

    return load


# Starting them takes over ten seconds of CPU time.
@pytest.fixture(scope="session", params=[pytest.param("gloo", marks=pytest.mark.slow)])
def rank_processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes of one thread that run scripts, see `rank_process.py`."""
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = str(ROOT)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.engine.rank_process"],
            env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def in_two_processes(
    rank_processes: list[subprocess.Popen[str]], tmp_path: Path, free_port: Callable[[], int]
) -> Callable[[str], str]:
    """Return a function that runs a script in two processes and returns the output of rank 0."""

    def run(script: str) -> str:
        (tmp_path / "script.py").write_text(script)
        job = {"script": str(tmp_path / "script.py"), "folder": str(tmp_path), "port": free_port()}
        for process in rank_processes:
            print(json.dumps(job), file=process.stdin, flush=True)
        answers = [json.loads(process.stdout.readline()) for process in rank_processes]
        assert [answer["error"] for answer in answers] == ["", ""]
        return str(answers[0]["output"])

    return run


@pytest.fixture
def diverging_toy() -> tuple[ToyDetector, list[list[int]]]:
    """Toy detector with a NaN loss in its third step, and the image ids of each step."""
    toy = new_toy()
    forward, image_ids = toy.forward, []

    def diverge(images: list[Any], targets: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        losses = forward(images, targets)
        image_ids.append([target["image_id"] for target in targets])
        if len(image_ids) == 3:
            losses["loss_box"] = losses["loss_box"] * torch.nan
        return losses

    toy.forward = diverge  # type: ignore[method-assign]
    return toy, image_ids
