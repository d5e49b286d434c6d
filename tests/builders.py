"""Build what many tests need: boxes, images, content in COCO's format, detectors and configs."""

import contextlib
import io
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from pycocotools.coco import COCO
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.apps.batch_predict.resumable_run import ResumableRun
from detlite.apps.prediction_files.writer import FORMATS, Entry, ModelInfo
from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.files import save_checkpoint
from detlite.config import load_config
from detlite.conventions import CONVENTIONS
from detlite.modeling.build import build_model
from detlite.structures.instances import Detections, GroundTruth

Row = dict[str, Any]

# A Mask R-CNN with a ResNet-18-FPN of a quarter of the usual width.
TINY: dict[str, Any] = {
    "MODEL.DEVICE": "cpu",
    "MODEL.MASK_ON": True,
    "MODEL.BACKBONE.CONV_BODY": "R-18-FPN",
    "MODEL.BACKBONE.FREEZE_CONV_BODY_AT": 0,
    "MODEL.RESNETS.NORM": "GN",
    "MODEL.RESNETS.STEM_OUT_CHANNELS": 16,
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 16,
    "MODEL.GROUP_NORM.NUM_GROUPS": 4,
    "MODEL.RPN.ANCHOR_SIZES": (8, 16, 32, 64, 128),
    "MODEL.RPN.STRADDLE_THRESH": -1,
    "MODEL.RPN.PRE_NMS_TOP_N_TRAIN": 100,
    "MODEL.RPN.PRE_NMS_TOP_N_TEST": 100,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN": 50,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 50,
    "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 32,
    "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": 20,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES": 4,
    "INPUT.TO_BGR255": False,
    "INPUT.PIXEL_MEAN": [0.485, 0.456, 0.406],
    "INPUT.PIXEL_STD": [0.229, 0.224, 0.225],
    "TEST.REPORT": False,
}
TINY_FPN: dict[str, Any] = {
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": 16,
    "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR": "FPN2MLPFeatureExtractor",
    "MODEL.ROI_BOX_HEAD.PREDICTOR": "FPNPredictor",
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 7,
    "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": 2,
    "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": 32,
    "MODEL.ROI_MASK_HEAD.FEATURE_EXTRACTOR": "MaskRCNNFPNFeatureExtractor",
    "MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR": False,
    "MODEL.ROI_MASK_HEAD.POOLER_SAMPLING_RATIO": 2,
    "MODEL.ROI_MASK_HEAD.CONV_LAYERS": (16,),
    "MODEL.ROI_MASK_HEAD.RESOLUTION": 28,
}


# Overrides that make any model with an FPN small, and the images that it reads.
NARROW: dict[str, Any] = {
    "MODEL.RESNETS.STEM_OUT_CHANNELS": 8,
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 8,
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": 16,
    "MODEL.GROUP_NORM.NUM_GROUPS": 4,
    "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": 16,
    "INPUT.MIN_SIZE_TRAIN": (64,),
    "INPUT.MIN_SIZE_TEST": 64,
}


def tiny_config(*opts: Any, c4: bool = False) -> CfgNode:
    """Return the config of a tiny Mask R-CNN with FPN, or with C4, changed by `opts`."""
    settings = TINY | ({"MODEL.BACKBONE.CONV_BODY": "R-18-C4"} if c4 else TINY_FPN)
    return load_config(None, [item for pair in settings.items() for item in pair] + list(opts))


# A small Mask R-CNN for generated images of shapes.
_SHAPES = """
_BASE_: _base_/from_scratch_fpn.yaml
DATASETS:
  ROOT: {root}
  CATALOG:
    - {{name: shapes_train, type: shapes, path: shapes, split: train, images: 8, seed: 1}}
    - {{name: shapes_val, type: shapes, path: shapes, split: val, images: 5, seed: 1}}
  TRAIN: [shapes_train]
  TEST: [shapes_val]
MODEL:
  MASK_ON: True
  DEVICE: cpu
  RESNETS: {{NORM: BN, STEM_OUT_CHANNELS: 8, RES2_OUT_CHANNELS: 8, BACKBONE_OUT_CHANNELS: 16}}
  RPN: {{ANCHOR_SIZES: [8, 16, 32, 64, 128], PRE_NMS_TOP_N_TRAIN: 100, PRE_NMS_TOP_N_TEST: 100,
        FPN_POST_NMS_TOP_N_TRAIN: 50, FPN_POST_NMS_TOP_N_TEST: 30}}
  ROI_HEADS: {{SCORE_THRESH: 0.0, DETECTIONS_PER_IMG: 20}}
  ROI_BOX_HEAD: {{NUM_CLASSES: 6, MLP_HEAD_DIM: 16}}
  ROI_MASK_HEAD: {{CONV_LAYERS: [16]}}
INPUT: {{MIN_SIZE_TRAIN: [96], MIN_SIZE_TEST: 96}}
DATALOADER: {{NUM_WORKERS: 0}}
SOLVER: {{IMS_PER_BATCH: 2, STEPS: [], LOG_PERIOD: 1, WARMUP_ITERS: 3, MAX_ITER: 2}}
TEST: {{IMS_PER_BATCH: 1, REPORT: False}}
"""


def write_shapes_config(file: Path, root: Path) -> Path:
    """Write the config of a small Mask R-CNN that is trained on shapes, generated in `root`."""
    file.write_text(_SHAPES.format(root=root))
    return file


def write_weights(
    cfg: CfgNode,
    path: Path,
    categories: Mapping[int, str] | None = None,
    keypoints: Sequence[str] = (),
) -> Path:
    """Write the checkpoint of an untrained model; its categories are 10, 20 and 30 by default."""
    names = {"keypoints": list(keypoints)} if keypoints else {}
    categories = categories or {10 * k: f"kind {k}" for k in (1, 2, 3)}
    rows = [{"id": number, "name": name, **names} for number, name in categories.items()]
    save_checkpoint(Checkpoint(path, build_model(cfg).state_dict(), rows, cfg.dump()))
    return path


def blob(seed: int, size: tuple[int, int] = (37, 53)) -> np.ndarray:
    """Return a mask of a few large parts that touch the borders."""
    coarse = np.random.default_rng(seed).random((5, 6)) > 0.55
    rows, columns = np.arange(size[0]) * 5 // size[0], np.arange(size[1]) * 6 // size[1]
    return coarse[rows[:, None], columns].astype(np.uint8)


def random_boxes(
    *shape: int, extent: float = 60.0, sides: tuple[float, float] = (1.0, 40.0)
) -> Tensor:
    """Return xyxy boxes [*shape, 4] with first corners in 0..extent and sides in this range."""
    corner = torch.rand(*shape, 2) * extent
    return torch.cat([corner, corner + torch.empty(*shape, 2).uniform_(*sides)], dim=-1)


def padded_gt(*boxes: Tensor) -> GroundTruth:
    """Return the boxes [N, 4] of each image with label 1, padded."""
    length = max(1, *map(len, boxes))
    padded = torch.zeros(len(boxes), length, 4)
    labels = torch.zeros(len(boxes), length, dtype=torch.int64)
    for image, own in enumerate(boxes):
        padded[image, : len(own)] = own
        labels[image, : len(own)] = 1
    return GroundTruth(padded, labels)


def rectangle(x: float, y: float, w: float, h: float) -> list[list[float]]:
    """Return the polygon of a box xywh, as a segmentation of COCO."""
    return [[x, y, x + w, y, x + w, y + h, x, y + h]]


def coco_object(box: Sequence[float], category: int = 1, image: int = 1, **fields: Any) -> Row:
    """Return the annotation of a box xywh; `coco_content` adds its id."""
    own = {"image_id": image, "category_id": category, "bbox": list(box)}
    return {**own, "area": box[2] * box[3], "iscrowd": 0, **fields}


def coco_detection(
    box: Sequence[float], score: float = 0.9, category: int = 1, image: int = 1, **fields: Any
) -> Row:
    """Return the detection of a box xywh in COCO's format of results."""
    row = {"image_id": image, "category_id": category, "bbox": list(box), "score": score}
    return {**row, **fields}


def coco_content(
    objects: Iterable[Row] = (),
    images: Iterable[int] = (1,),
    size: tuple[int, int] = (100, 100),
    categories: Mapping[int, str] | Sequence[str] = ("cat", "dog"),
) -> Row:
    """Return the content of an annotation file.

    Args:
        objects: annotations, such as those of `coco_object`; their ids are 1, 2, ...
        images: ids of the images `{id}.png`.
        size: (height, width) of all images.
        categories: names by id, or names of the ids 1, 2, ...
    """
    named = categories if isinstance(categories, Mapping) else dict(enumerate(categories, 1))
    height, width = size
    return {
        "images": [
            {"id": number, "file_name": f"{number}.png", "height": height, "width": width}
            for number in images
        ],
        "categories": [{"id": number, "name": name} for number, name in named.items()],
        "annotations": [{"id": number, **row} for number, row in enumerate(objects, start=1)],
    }


def make_coco(content: Row) -> COCO:
    """Return the dataset of the content of an annotation file."""
    coco = COCO()
    coco.dataset = content
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
    return coco


def write_noise(path: Path, height: int = 40, width: int = 60, seed: int = 0) -> Path:
    """Write an image of random colors, and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def write_text(path: Path, content: str) -> Path:
    """Write a text file and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def write_coco_dataset(
    root: Path,
    name: str = "set",
    images: int = 6,
    size: tuple[int, int] = (96, 128),
    objects: int = 3,
    sides: tuple[float, float] = (16, 40),
    ratio: float = 1.0,
    categories: Sequence[str] = ("cat", "dog"),
    masks: bool = True,
    keypoints: Sequence[str] = (),
    gray: bool = False,
) -> tuple[Path, Path]:
    """Write images of bright rectangles and their COCO annotations.

    Args:
        root: where to write it.
        name: folder of the dataset.
        images: number of images.
        size: (height, width) of an image.
        objects: number of objects per image.
        sides: (minimum, maximum) of an object's side.
        ratio: height / width of an object.
        categories: names of the categories.
        masks: write polygons.
        keypoints: names of keypoints, all at an object's center.
        gray: write images of one channel.

    Returns:
        The annotation file and the folder of images.
    """
    rng = np.random.default_rng(0)
    folder = root / name
    (folder / "images").mkdir(parents=True)
    height, width = size
    rows: list[Row] = []
    for image_id in range(1, images + 1):
        pixels = rng.integers(0, 100, (height, width) if gray else (height, width, 3), np.uint8)
        for _ in range(objects):
            side = rng.uniform(*sides)
            w, h = side / ratio**0.5, side * ratio**0.5
            x, y = rng.uniform(0, width - w), rng.uniform(0, height - h)
            pixels[int(y) : int(y + h), int(x) : int(x + w)] += 120
            category = int(rng.integers(len(categories))) + 1
            row = {"image_id": image_id, "category_id": category, "bbox": [x, y, w, h]}
            if masks:
                row["segmentation"] = rectangle(x, y, w, h)
            if keypoints:
                row["keypoints"] = [x + w / 2, y + h / 2, 2] * len(keypoints)
            rows.append(row)
        Image.fromarray(pixels).save(folder / "images" / f"{image_id}.png")
    content = coco_content(rows, range(1, images + 1), size, categories)
    if keypoints:
        for category in content["categories"]:
            category["keypoints"] = list(keypoints)
    (folder / "annotations.json").write_text(json.dumps(content))
    return folder / "annotations.json", folder / "images"


def square_image(height: int = 60, width: int = 120) -> np.ndarray:
    """Return a black image uint8 [H, W, 3] with a bright square at x 20..60, y 10..50."""
    array = np.zeros((height, width, 3), np.uint8)
    array[10:50, 20:60] = 255
    return array


class FakeDetector(nn.Module):
    """What a `Predictor` needs of a model, without layers; a subclass detects in an image."""

    convention = CONVENTIONS["detlite"]
    normalizer = SimpleNamespace(divisibility=0)
    channels = 3
    mask_threshold = 0.5
    device = torch.device("cpu")
    takes_proposals = False
    resizes_images = False

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[Tensor]] = []

    @property
    def sizes(self) -> list[list[tuple[int, ...]]]:
        """(height, width) of the images of each call."""
        return [[tuple(image.shape[1:]) for image in images] for images in self.calls]

    def detect(
        self, images: list[Tensor], proposals: list[Tensor] | None = None, min_score: float = 0.0
    ) -> list[Detections]:
        assert not self.training
        self.calls.append(images)
        batch = [self._detect(image) for image in images]
        return [detections[detections.scores >= min_score] for detections in batch]

    def _detect(self, image: Tensor) -> Detections:
        raise NotImplementedError


class BrightSquare(FakeDetector):
    """Detects the bright square, and the whole image with a lower score, while `gate` is open.

    Args:
        masks: detect masks that fill the boxes.
        keypoints: detect a keypoint of each object.
    """

    categories = ({"id": 7, "name": "square"}, {"id": 90, "name": "image"})
    normalizer = SimpleNamespace(divisibility=32)

    def __init__(self, masks: bool = True, keypoints: bool = False) -> None:
        super().__init__()
        self.masks, self.keypoints = masks, keypoints
        self.proposals: list[list[Tensor] | None] = []
        self.autocast: list[bool] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False

    def detect(
        self, images: list[Tensor], proposals: list[Tensor] | None = None, min_score: float = 0.0
    ) -> list[Detections]:
        self.proposals.append(proposals)
        self.autocast.append(torch.is_autocast_enabled("cpu"))
        results = super().detect(images, proposals, min_score)
        assert self.gate.wait(20)
        if self.fails:
            raise RuntimeError("out of memory")
        return results

    def _detect(self, image: Tensor) -> Detections:
        height, width = image.shape[1:]
        y, x = torch.nonzero(image.float().mean(dim=0) > 127, as_tuple=True)
        square = [0, 0, width, height]  # of an image without a bright pixel
        if len(x):
            square = [int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1]
        points = torch.tensor([[[30.0, 20, 1]], [[60.0, 30, 1]]]) if self.keypoints else None
        return Detections(
            boxes=torch.tensor([square, [0, 0, width, height]], dtype=torch.float32),
            labels=torch.tensor([1, 2]),
            scores=torch.tensor([0.9, 0.3]),
            valid=torch.tensor([True, True]),
            mask_probs=torch.ones(2, 28, 28) if self.masks else None,
            keypoints=points,
            keypoint_scores=None if points is None else torch.zeros(2, 1),
        )


def write_predictions(
    folder: Path, format: str, entries: Iterable[Entry], model: ModelInfo
) -> None:
    """Write the files of `detlite predict`, and replace earlier ones."""
    shutil.rmtree(folder)
    with contextlib.closing(ResumableRun(FORMATS.get(format)(folder, model), {})) as run:
        for entry in entries:
            run.add(entry)
        run.finish()


def run_python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run code in a new process; `options` are those of `subprocess.run`."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


def leave_drawings_empty(patch: Any) -> None:
    """Make runs touch the files of their drawings."""
    module = "detlite.apps.report.run_drawings"
    patch.setattr(f"{module}.Predictor", lambda *arguments, **options: None)
    for name in ("plot_metrics", "draw_sheet"):
        patch.setattr(f"{module}.{name}", lambda *arguments: arguments[-1].touch())
