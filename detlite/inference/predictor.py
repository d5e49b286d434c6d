"""Predict objects in images of any size: read, resize, detect, and map back to the image."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.checkpoint.loading import build_model_from_checkpoint
from detlite.config.key import value_range as valid_range
from detlite.data.images.pixels import DEFAULT_OPTIONS, ImageOptions, build_image_options
from detlite.data.transforms.resize import resize_shortest
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.detector import unwrap
from detlite.modeling.precision import autocast
from detlite.registry import Registry
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections
from detlite.structures.keypoints import keypoint_names

from .build import build_inference, with_score_thresh, wrap_detector
from .detectors import View, size_of
from .prediction import ImageInput, LoadedImage, Prediction, image_files, load_image, to_prediction
from .tiling import Tiling, build_tiling
from .tta import build_views

# Readers of model files: called with a path, config overrides, and `trust` of `Predictor`.
READERS: Registry[Callable[..., tuple[CfgNode, DetectionModel]]] = Registry(
    "reader of models", on_demand={"exported": "detlite.apps.export.exported_detector"}
)
_EXPORTED_SUFFIXES = (".onnx", ".openvino", ".pt2")  # other files are checkpoints
_MIN_SCALE = 0.6  # of an image, relative to its scale in training; warn below it
_LIMITS: dict[str, tuple[float, float, type]] = {
    "min_size": (1, math.inf, Integral),
    "max_size": (1, math.inf, Integral),
    "score_thresh": (0, 1, Real),
    "max_pixels": (1, math.inf, Integral),
    "image_bits": (8, 16, Integral),
}

logger = logging.getLogger(__name__)


class Predictor:
    """Runs a model on images of any size, resized as in evaluation.

    Call it with an image: a file path, the bytes of a file, a PIL image, or uint8 RGB as an array
    [H, W, 3] or a tensor [3, H, W] (C channels instead of three for a model of C channels). It
    returns a `Prediction`, a dict with the N detections by decreasing score, in pixels of the
    image, on the CPU:

    - `size`: (height, width) of the image,
    - `boxes` float32 [N, 4], xyxy,
    - `labels` int64 [N] in 1..K, and `scores` float32 [N] in 0..1,
    - `category_ids` and `names`: lists of N, the dataset's ids and names of the labels,
    - for models with a mask head `masks`, bool [N, H, W] (or COCO RLEs, see `rle`), and with
      TEST.MASK_CONFIDENCE `mask_scores` float32 [N], by which masks are ranked,
    - for models with a keypoint head `keypoints` float32 [N, P, 3] of (x, y, 1) and
      `keypoints_scores` [N, P], their logits,
    - the outputs of TEST.EXTRA_OUTPUTS: `class_scores` float32 [N, K] of all categories, and
      `features` float32 [N, C], the box head's features of the detected box.

    Called with a list of images, it returns a list, with the same results as image by image; called
    with a folder, it runs the images in it one by one and returns a list by file name. A Fast R-CNN
    also needs `proposals` for each image, float [R, 4] xyxy in its pixels. The EXIF orientation of
    a file is applied if the model's convention says so. Invalid images raise a DataError that names
    the file, or a TypeError or ValueError.

    Args:
        model: a detector from `build_model`, which is put in evaluation mode, a checkpoint (see
            `from_checkpoint`), or a file written by `detlite export`.
        min_size: length of the short side after resizing, in pixels (800, or the file's value).
        max_size: maximum length of the long side (1333, or the file's value).
        score_thresh: minimum score of detections; it replaces a higher threshold of the model
            (MODEL.ROI_HEADS.SCORE_THRESH). None: TEST.SCORE_THRESHOLD of the file, which training
            measures, or the model's threshold.
        rle: return masks as COCO RLEs, not as bitmaps of H x W bytes each.
        dtype: precision of the forward pass with autocast: float32, float16 or bfloat16. A model
            of `detlite.optimize` with float32 is faster; `from_checkpoint` creates one.
        views: views for test-time augmentation, instead of the size above. None: the views of
            the file if neither size is given, otherwise one view.
        max_pixels, image_bits, value_range: options of image files, see `ImageOptions` (its
            defaults, or the file's values).
        tiling: cut larger images into tiles and detect in each. None: the file's value, or none.
        trust: also read a .pt2 file, which can run any code when it is read.
        cfg: config with the defaults of other arguments, apart from `dtype`; a file has its own.
    """

    def __init__(
        self,
        model: DetectionModel | str | Path,
        min_size: int | None = None,
        max_size: int | None = None,
        score_thresh: float | None = None,
        rle: bool = False,
        dtype: str = "float32",
        views: Sequence[View] | None = None,
        max_pixels: int | None = None,
        image_bits: int | None = None,
        value_range: Sequence[float] | None = None,
        tiling: Tiling | None = None,
        trust: bool = False,
        cfg: CfgNode | None = None,
    ) -> None:
        if isinstance(model, str | Path):
            if Path(model).suffix in _EXPORTED_SUFFIXES:
                cfg, model = READERS.get("exported")(model, (), trust)
            else:
                cfg, model = build_model_from_checkpoint(model)
                model, file_dtype = build_inference(cfg, model)
                dtype = file_dtype if dtype == "float32" else dtype
        sizes, options = (800, 1333), DEFAULT_OPTIONS
        if cfg is not None:
            if score_thresh is None:
                score_thresh = cfg.TEST.SCORE_THRESHOLD or None
            if views is None and min_size is None and max_size is None:
                views = build_views(cfg)
            sizes = cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST
            options, tiling = build_image_options(cfg), tiling or build_tiling(cfg)
        plain: Any = unwrap(model)
        if not hasattr(plain, "detect") or isinstance(plain, Predictor):
            raise TypeError(f"Predictor needs a model of build_model, not {type(plain).__name__}")
        self.min_size = sizes[0] if min_size is None else min_size
        self.max_size = sizes[1] if max_size is None else max_size
        self.score_thresh = score_thresh or 0.0
        self.rle = rle
        self.dtype = dtype
        self.max_pixels = options.max_pixels if max_pixels is None else max_pixels
        self.image_bits = options.bits if image_bits is None else image_bits
        self.value_range = options.value_range if value_range is None else value_range
        for name, (low, high, kind) in _LIMITS.items():
            value: Any = getattr(self, name)
            is_number = isinstance(value, kind) and not isinstance(value, bool)
            if not is_number or not low <= value <= high:
                expected = "an integer" if kind is Integral else "a number"
                raise ValueError(
                    f"Predictor({name}={value!r}): must be {expected} in {low}..{high}"
                )
        problem = valid_range(self.value_range)
        if not problem and len(self.value_range) not in (0, 2, 2 * plain.channels):
            problem = f"one pair of numbers, or {plain.channels} for the channels of the model"
        if problem:
            raise ValueError(f"Predictor(value_range={value_range!r}): must be {problem}")
        if dtype not in ("float32", "float16", "bfloat16", "auto"):
            raise ValueError(f"Predictor(dtype={dtype!r}): must be float32, float16 or bfloat16")
        if score_thresh is not None:
            plain = with_score_thresh(plain, score_thresh)
        self.model: DetectionModel = plain.eval()
        view, names = View(self.min_size, self.max_size), keypoint_names(self.categories)
        # Detects in loaded images.
        self.detector = wrap_detector(self.model, view, views or (), tiling, names)
        self._warned = False

    @staticmethod
    def from_checkpoint(
        path: str | Path,
        opts: Sequence[Any] = (),
        config: str | Path | None = None,
        score_thresh: float | None = None,
        rle: bool = False,
    ) -> Predictor:
        """Build the predictor of a checkpoint from training, with the config stored in it.

        Args:
            path: the checkpoint, `.pth` or `.pkl`, or one of another framework, which is converted
                and implies a config. Code in it is not executed.
            opts: config overrides, alternating keys and values. A model with custom modules needs
                `["IMPORTS", "my_modules.py"]`, because IMPORTS of the file are ignored.
            config: YAML file of the model, for weights that imply no config, such as an FBNet's.

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
        if isinstance(images, str | Path) and Path(images).is_dir():
            return [self(file) for file in image_files(Path(images))]
        if not isinstance(images, list | tuple):
            return self([images], None if proposals is None else [proposals])[0]
        if not images:
            return []
        loaded = [self.load(image) for image in images]
        predictions = list(map(self.to_prediction, self.detect(loaded, proposals), loaded))
        for prediction, image in zip(predictions, images, strict=True):
            prediction.source = image
        return predictions

    @property
    def streams(self) -> int:
        """Number of concurrent calls of `detect` that keep the device busy."""
        return min(2, torch.get_num_threads()) if self.model.device.type == "cpu" else 1

    @property
    def image_options(self) -> ImageOptions:
        """Limits and interpretation of image files."""
        bits, values = self.image_bits, tuple(self.value_range)
        upright, channels = self.model.convention.exif_orientation, self.model.channels
        return ImageOptions(self.max_pixels, bits, upright, channels, values)

    def load(self, image: ImageInput, page: int | None = None) -> LoadedImage:
        """Read an image or a page of a file, from 0, and resize it unless the detector does."""
        original = load_image(image, self.image_options, page)
        if self.detector.resizes_images:
            return LoadedImage(original, original)
        resize = self.model.convention.resize
        loaded = LoadedImage(
            original, resize_shortest(original, self.min_size, self.max_size, resize)
        )
        # The maximum length may make an image far smaller than training images.
        height, width = size_of(loaded.network_input)
        if min(height, width) < _MIN_SCALE * self.min_size and not self._warned:
            self._warned = True
            logger.warning(
                "an image of %d x %d pixels is resized to %d x %d, %.2g times the scale of other "
                "images, because INPUT.MAX_SIZE_TEST is %d: small objects will be missed. Raise it "
                "(max_size), or cut such images into tiles (TEST.TILE, detlite predict --tile)",
                *loaded.size[::-1], width, height, min(height, width) / self.min_size,
                self.max_size,
            )  # fmt: skip
        return loaded

    def detect(self, loaded: Sequence[LoadedImage], proposals: Any = None) -> list[Detections]:
        """Return the detections of each image, in pixels of the network input.

        Only images that are padded to the same size form a batch, so the detections of an image do
        not depend on the other images, apart from rounding. The `proposals` for a Fast R-CNN are
        boxes in pixels of each original image.
        """
        if proposals is not None and len(proposals) != len(loaded):
            raise ValueError(f"got {len(loaded)} images, but proposals for {len(proposals)}")
        batches: dict[tuple[int, ...], list[int]] = {}
        for index, image in enumerate(loaded):
            batches.setdefault(self.padded_size(image), []).append(index)
        detections: dict[int, Detections] = {}
        for batch in batches.values():
            inputs = [loaded[index].network_input for index in batch]
            boxes = None
            if proposals is not None:
                boxes = [self._resized(proposals[index], loaded[index]) for index in batch]
            with torch.no_grad(), autocast(self.dtype, self.model.device):
                results = self.detector.detect(inputs, boxes, self.score_thresh)
            detections.update(zip(batch, results, strict=True))
        return [detections[index] for index in range(len(loaded))]

    def padded_size(self, image: LoadedImage) -> tuple[int, ...]:
        """Return the (height, width) to which the model pads a batch of this image only."""
        step = max(1, self.model.normalizer.divisibility)
        return tuple(-(-side // step) * step for side in size_of(image.network_input))

    def _resized(self, proposals: Any, image: LoadedImage) -> Tensor:
        sizes = image.size, size_of(image.network_input)
        return box_ops.rescale(torch.as_tensor(proposals), *sizes, self.model.convention)

    def to_prediction(self, detections: Detections, loaded: LoadedImage) -> Prediction:
        """Map the detections of an image to the original image, and paste their masks."""
        prediction = to_prediction(detections, loaded, self.model, self.rle)
        prediction.options, prediction.threshold = self.image_options, self.score_thresh
        return prediction


def build_predictor(
    cfg: CfgNode, model: DetectionModel, score_thresh: float | None = None, rle: bool = False
) -> Predictor:
    """Build the predictor that runs a model as evaluation does: by INPUT, DTYPE and TEST."""
    model, dtype = build_inference(cfg, model)
    return Predictor(model, score_thresh=score_thresh, rle=rle, dtype=dtype, cfg=cfg)


def read_predictor(
    path: str | Path,
    opts: Sequence[Any] = (),
    score_thresh: float | None = None,
    rle: bool = False,
    trust: bool = False,
) -> Predictor:
    """Build the predictor of a file of `detlite export`, with config overrides."""
    cfg, model = READERS.get("exported")(path, opts, trust)
    return Predictor(model, score_thresh=score_thresh, rle=rle, dtype=cfg.DTYPE, cfg=cfg)


load_checkpoint = Predictor.from_checkpoint
