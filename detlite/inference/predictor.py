"""Predict objects in images of any size: read, resize, detect, and map back to the image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.conversion.checkpoint.loading import build_model_from_checkpoint
from detlite.data.datasets.coco import keypoint_names
from detlite.data.loading.image_io import DEFAULT_OPTIONS, ImageOptions, read_image
from detlite.data.transforms.resize import resize_shortest
from detlite.evaluation.results import categories_of
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.detector import Detector
from detlite.modeling.precision import autocast
from detlite.ops import paste_masks
from detlite.registry import Registry
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections
from detlite.structures.masks.formats import to_bitmap
from detlite.structures.masks.pasting import paste_boxes

from .build import build_inference, wrap_detector
from .detectors import View, size_of
from .exporters import to_supervision
from .images import ImageInput, LoadedImage, image_to_tensor
from .tiling import Tiling, build_tiling
from .tta import build_views

# Readers of files with a model. They take a path, config overrides, and `trust` of `Predictor`.
READERS: Registry[Callable[..., tuple[CfgNode, DetectionModel]]] = Registry(
    "reader of models", on_demand={"exported": "detlite.apps.export.exported_detector"}
)


class Prediction(dict[str, Any]):
    """Detections of an image, as a dict with the keys that `Predictor` describes."""

    def to_supervision(self) -> Any:
        """Convert to `supervision.Detections`, see `exporters.to_supervision`."""
        return to_supervision(self)


class Predictor:
    """Runs a model on images of any size, resized as in evaluation.

    Call it with an image: a file path, the bytes of a file, a PIL image, or uint8 RGB as an array
    [H, W, 3] or a tensor [3, H, W]. It returns a dict with the N detections by decreasing score, in
    pixels of the image, on the CPU:

    - `size`: (height, width) of the image,
    - `boxes` float32 [N, 4], xyxy,
    - `labels` int64 [N] in 1..K, and `scores` float32 [N] in 0..1,
    - `category_ids` and `names`: lists of N, the dataset's ids and names of the labels,
    - for models with a mask head `masks`, bool [N, H, W] (or COCO RLEs, see `rle`),
    - for models with a keypoint head `keypoints` float32 [N, P, 3] of (x, y, 1) and
      `keypoints_scores` [N, P], their logits.

    Called with a list of images, it runs them as one batch and returns a list. A Fast R-CNN also
    takes `proposals` for each image, float [R, 4] xyxy in its pixels. The EXIF orientation of a
    file is applied if the model's convention says so. Invalid images raise a DataError that names
    the file, or a TypeError or ValueError.

    Args:
        model: a detector from `build_model`, which is put in evaluation mode, or a file written by
            `detlite export`.
        min_size: length in pixels to which the short side of an image is resized (800, or as the
            file says).
        max_size: maximum length of the long side (1333, or as the file says).
        score_thresh: detections with a lower score are dropped.
        rle: return masks as COCO RLEs, not as bitmaps, which take H x W bytes each.
        dtype: precision of the forward pass with autocast: float32, float16 or bfloat16. A model
            of `detlite.optimize` with float32 is faster; `from_checkpoint` makes one.
        views: views for test-time augmentation, in place of the size above. None: one view, or
            as the file says if neither size is given.
        max_pixels, image_bits: limits of image files, see `data.loading.image_io.read_image`
            (Pillow's limit and 16, or as the file says).
        tiling: cut larger images into tiles and detect in each. None: do not, or as the file says.
        trust: also read a .pt2 file, which can run any code when it is read.

    Attributes:
        model: the model.
        detector: detects in loaded images: the model itself, or a wrapper for `views` and `tiling`.
    """

    def __init__(
        self,
        model: DetectionModel | str | Path,
        min_size: int | None = None,
        max_size: int | None = None,
        score_thresh: float = 0.0,
        rle: bool = False,
        dtype: str = "float32",
        views: Sequence[View] | None = None,
        max_pixels: int | None = None,
        image_bits: int | None = None,
        tiling: Tiling | None = None,
        trust: bool = False,
    ) -> None:
        sizes, limits = (800, 1333), (DEFAULT_OPTIONS.max_pixels, DEFAULT_OPTIONS.bits)
        if isinstance(model, str | Path):
            cfg, model = READERS.get("exported")(model, (), trust)
            sizes, limits = _sizes(cfg), _limits(cfg)
            if views is None and min_size is None and max_size is None:
                views = build_views(cfg)
            tiling = tiling or build_tiling(cfg)
        self.model = model.eval()
        self.min_size = min_size or sizes[0]
        self.max_size = max_size or sizes[1]
        self.score_thresh = score_thresh
        self.rle = rle
        self.dtype = dtype
        self.max_pixels = max_pixels or limits[0]
        self.image_bits = image_bits or limits[1]
        names = keypoint_names(self.categories)
        view = View(self.min_size, self.max_size)
        wrapper = wrap_detector(self.model, view, views or (), tiling, names)
        self.detector: Detector = wrapper or self.model

    @staticmethod
    def from_checkpoint(
        path: str | Path,
        opts: Sequence[Any] = (),
        config: str | Path | None = None,
        score_thresh: float = 0.0,
        rle: bool = False,
    ) -> Predictor:
        """Build the predictor of a checkpoint from training, with the config stored in it.

        Args:
            path: the checkpoint, `.pth` or `.pkl`, or one of torchvision, detectron2 or
                maskrcnn-benchmark, which is converted and implies a config. Code in it is not
                executed.
            opts: config overrides, alternating keys and values. A model with custom modules needs
                `["IMPORTS", "my_modules.py"]`, because IMPORTS of the file are ignored.
            config: YAML file of the model, for weights that imply no config, such as an FBNet's.
            score_thresh, rle: see the class.

        Raises:
            CheckpointError, ConfigError: the message says what to do.
        """
        cfg, model = build_model_from_checkpoint(path, opts, config)
        return build_predictor(cfg, model, score_thresh, rle)

    @property
    def categories(self) -> list[dict[str, Any]]:
        """Categories {"id", "name"} of the model; label k is `categories[k - 1]`."""
        return self.model.categories

    @overload
    def __call__(self, images: ImageInput, proposals: Tensor | None = None) -> Prediction: ...

    @overload
    def __call__(
        self, images: list[Any] | tuple[Any, ...], proposals: Sequence[Tensor] | None = None
    ) -> list[Prediction]: ...

    def __call__(self, images: Any, proposals: Any = None) -> Prediction | list[Prediction]:
        if not isinstance(images, list | tuple):
            return self([images], None if proposals is None else [proposals])[0]
        if not images:
            return []
        loaded = [self.load(image) for image in images]
        return list(map(self.to_prediction, self.detect(loaded, proposals), loaded))

    @property
    def streams(self) -> int:
        """Number of concurrent calls of `detect` that keep the device busy."""
        return min(2, torch.get_num_threads()) if self.model.device.type == "cpu" else 1

    def load(self, image: ImageInput) -> LoadedImage:
        """Read an image, and resize it unless the detector does."""
        if isinstance(image, str | Path | bytes):
            upright = self.model.convention.exif_orientation
            options = ImageOptions(self.max_pixels, self.image_bits, upright)
            original = read_image(image, options=options)
        else:
            original = image_to_tensor(image)
        if self.detector.resizes_images:
            return LoadedImage(original, original)
        resize = self.model.convention.resize
        resized = resize_shortest(original, self.min_size, self.max_size, resize)
        return LoadedImage(original, resized)

    def detect(self, loaded: Sequence[LoadedImage], proposals: Any = None) -> list[Detections]:
        """Return the detections of each image of a batch, in pixels of the network input.

        The `proposals` for a Fast R-CNN are boxes in pixels of each original image.
        """
        rescaled = None
        if proposals is not None:
            if len(proposals) != len(loaded):
                raise ValueError(f"got {len(loaded)} images, but proposals for {len(proposals)}")
            rescaled = [
                box_ops.rescale(
                    torch.as_tensor(boxes),
                    image.size,
                    size_of(image.network_input),
                    self.model.convention,
                )
                for boxes, image in zip(proposals, loaded, strict=True)
            ]
        with torch.no_grad(), autocast(self.dtype, self.model.device):
            inputs = [image.network_input for image in loaded]
            return self.detector.detect(inputs, rescaled, self.score_thresh)

    def to_prediction(self, detections: Detections, loaded: LoadedImage) -> Prediction:
        """Map the detections of an image to the original image, and paste their masks."""
        size, convention = loaded.size, self.model.convention
        detections = detections.to("cpu")
        detections = replace(detections, boxes=detections.boxes.float())
        detections = detections.rescale(size_of(loaded.network_input), size, convention)
        boxes = detections.boxes
        categories = categories_of(detections.labels, self.categories)
        prediction = Prediction(
            size=size,
            boxes=boxes,
            labels=detections.labels,
            scores=detections.scores.float(),
            category_ids=[category["id"] for category in categories],
            names=[category["name"] for category in categories],
        )
        if detections.mask_probs is not None:
            rles = paste_masks(
                detections.mask_probs,
                paste_boxes(boxes, detections.mask_probs.shape[-1], convention),
                size,
                self.model.mask_threshold,
            )
            prediction["masks"] = rles if self.rle else _bitmaps(rles, size)
        if detections.keypoints is not None:
            prediction["keypoints"] = detections.keypoints
            prediction["keypoints_scores"] = detections.keypoint_scores
        return prediction


def build_predictor(
    cfg: CfgNode, model: DetectionModel, score_thresh: float = 0.0, rle: bool = False
) -> Predictor:
    """Build the predictor that runs a model as evaluation does: by INPUT, DTYPE and TEST."""
    return _configured(cfg, *build_inference(cfg, model), score_thresh, rle)


def read_predictor(
    path: str | Path,
    opts: Sequence[Any] = (),
    score_thresh: float = 0.0,
    rle: bool = False,
    trust: bool = False,
) -> Predictor:
    """Build the predictor of a file of `detlite export`, with config overrides."""
    cfg, model = READERS.get("exported")(path, opts, trust)
    return _configured(cfg, model, cfg.DTYPE, score_thresh, rle)


def _configured(
    cfg: CfgNode, model: DetectionModel, dtype: str, score_thresh: float, rle: bool
) -> Predictor:
    views, tiling = build_views(cfg), build_tiling(cfg)
    return Predictor(
        model, *_sizes(cfg), score_thresh, rle, dtype, views, *_limits(cfg), tiling=tiling
    )


def _sizes(cfg: CfgNode) -> tuple[int, int]:
    return cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST


def _limits(cfg: CfgNode) -> tuple[int, int]:
    return cfg.DATASETS.MAX_PIXELS, cfg.INPUT.IMAGE_BITS


load_checkpoint = Predictor.from_checkpoint


def _bitmaps(rles: Sequence[dict[str, Any]], size: tuple[int, int]) -> Tensor:
    bitmaps = torch.zeros((len(rles), *size), dtype=torch.bool)
    for bitmap, rle in zip(bitmaps, rles, strict=True):
        bitmap.copy_(torch.from_numpy(to_bitmap(rle, *size)))
    return bitmaps
