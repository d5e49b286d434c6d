"""Predict objects in images of any size: read, resize, detect, and map back to the image."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from detlite.checkpoint.loading import build_model_from_checkpoint
from detlite.config import ConfigError, Overrides, as_list
from detlite.data.transforms.resize import resize_shortest, size_of
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.detector import unwrap
from detlite.modeling.precision import autocast
from detlite.structures import boxes as box_ops
from detlite.structures import on_cpu_by_default
from detlite.structures.instances import Detections
from detlite.structures.keypoints import keypoint_names

from .build import build_detector
from .inputs import expand_input
from .options import InferenceOptions, View, build_options
from .prediction import ImageInput, LoadedImage, Prediction, load_image, to_prediction

_EXPORTED_SUFFIXES = (".onnx", ".openvino", ".pt2")  # other files are checkpoints
Threshold = float | Mapping[str, float | None]  # minimum score, maybe by name of category
_MIN_SCALE = 0.6  # of an image, relative to its scale in training; warn below it

logger = logging.getLogger(__name__)


class Predictor:
    """Runs a model on images of any size, resized as in evaluation.

    Call it with an image: a file path, a URL (http, https, file, s3, data ...), an opened file or
    its bytes, a PIL image, or RGB as an array [H, W, 3] or a tensor [3, H, W] (C channels instead
    of three for a model of C channels), uint8 or float in 0..1. Arrays may be gray, [H, W], and of
    16 bits.
    It returns a `Prediction`, a dict with the N detections by decreasing score, in pixels of the
    image, on the CPU; its length is N, and it keeps the pixels of the image for `plot`:

    - `size`: (height, width) of the image,
    - `boxes` float32 [N, 4], xyxy,
    - `labels` int64 [N] in 1..K, and `scores` float32 [N] in 0..1,
    - `category_ids` and `names`: lists of N, the dataset's ids and names of the labels,
    - for models with a mask head `masks`, bool [N, H, W] (or COCO RLEs, see `rle`),
    - for models with a keypoint head `keypoints` float32 [N, P, 3] of (x, y, 1) and
      `keypoints_scores` [N, P], their logits,
    - the outputs of TEST.EXTRA_OUTPUTS: `class_scores` float32 [N, K] of all categories, and
      `features` float32 [N, C], the box head's features of the detected box,
    - own fields [N, ...] that the heads of the model predict.

    Called with a list of images, it returns a list, with the same results as image by image. Called
    with a folder, glob, list or archive (see `inputs.expand_input`), it runs their images and
    returns a list by file name. A Fast R-CNN also needs `proposals` for each image, float [R, 4]
    xyxy in its pixels. The EXIF orientation of a file or PIL image is applied if the model's
    convention says so. Invalid images raise a DataError that names the file, or a TypeError or
    ValueError.

    Args:
        model: a detector from `build_model`, which is put in evaluation mode, a checkpoint (see
            `from_checkpoint`), or a file written by `detlite export`.
        min_size: length of the short side after resizing, in pixels (800, or the file's value).
        max_size: maximum length of the long side (1333, or the file's value). A size turns off
            test-time augmentation.
        score_thresh: minimum score of detections; it replaces a higher threshold of the model
            (MODEL.ROI_HEADS.SCORE_THRESH). None: the threshold that `overrides` of
            `from_checkpoint` name, or TEST.SCORE_THRESHOLD of the file, which training measures, or
            0.5 if it is unknown; for a model in memory, the model's threshold. Also minimum scores
            by name of category, {"car": 0.7, "bus": None}, None for the threshold as above;
            detections of other categories are dropped.
        rle: return masks as COCO RLEs, not as bitmaps of H x W bytes each.
        options: how images are read and objects are detected in them. None: the file's options,
            which `from_checkpoint` can override one by one, or the default ones. Those of a config
            are `build_options(cfg)` of `detlite.inference.options`.
        trust: also read a .pt2 file, which can run any code when it is read.

    Attributes:
        model: the model, which can be called, trained and saved. With `options.optimize`, as of
            files, the predictor detects with a copy that training does not change.
    """

    def __init__(
        self,
        model: DetectionModel | str | Path,
        min_size: int | None = None,
        max_size: int | None = None,
        score_thresh: Threshold | None = None,
        rle: bool = False,
        options: InferenceOptions | None = None,
        trust: bool = False,
    ) -> None:
        if isinstance(model, str | Path):
            model, file_options = _read_model(model, trust=trust)
            options = options or file_options
        options = options or InferenceOptions()
        plain: Any = unwrap(model)
        if not hasattr(plain, "detect") or isinstance(plain, Predictor):
            raise TypeError(f"Predictor needs a model of build_model, not {type(plain).__name__}")
        if min_size is not None or max_size is not None:
            view = View(
                options.view.min_size if min_size is None else min_size,
                options.view.max_size if max_size is None else max_size,
            )
            options = replace(options, view=view, views=())
        self._min_scores = None  # [K + 1] by label
        if isinstance(score_thresh, Mapping):
            default = options.score_thresh or 0.0
            self._min_scores = _min_scores(score_thresh, plain.categories, default)
            score_thresh = self._min_scores.min().item()
        if score_thresh is not None:
            options = replace(options, score_thresh=score_thresh)
        self.model: DetectionModel = plain.eval()
        self.min_size, self.max_size = options.view.min_size, options.view.max_size
        self.score_thresh, self.rle = options.score_thresh or 0.0, rle
        self.image_options = replace(
            options.images,
            exif_orientation=self.model.convention.exif_orientation,
            channels=self.model.channels,
        )
        self._options = options
        # Detects in loaded images.
        names = keypoint_names(self.categories)
        self.detector, self.dtype = build_detector(self.model, options, names)
        self._warned = False

    @staticmethod
    def from_checkpoint(
        path: str | Path,
        overrides: Overrides = (),
        config: str | Path | None = None,
        score_thresh: Threshold | None = None,
        rle: bool = False,
        trust: bool = False,
    ) -> Predictor:
        """Build the predictor of a checkpoint from training, with the config stored in it.

        Args:
            path: the checkpoint, `.pth` or `.pkl`, or one of another framework, which is converted
                and implies a config. Code in it is not executed. Also a file written by `detlite
                export`.
            overrides: config keys and values, `{"INPUT.MIN_SIZE_TEST": 640}`. A model with custom
                modules needs `{"IMPORTS": "my_modules.py"}`, because IMPORTS of the file are
                ignored. Overrides do not change an exported model, but how images are read, resized
                and tiled for it.
            config: YAML file of the model, for weights that imply no config, such as an FBNet's.
            score_thresh, rle, trust: see `Predictor`.

        Raises:
            CheckpointError, ConfigError: the message says what to do.
        """
        model, options = _read_model(path, as_list(overrides), config, trust)
        return Predictor(model, score_thresh=score_thresh, rle=rle, options=options)

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

    @on_cpu_by_default
    def __call__(self, images: Any, proposals: Any = None) -> Prediction | list[Prediction]:
        if isinstance(images, str | Path):
            named = expand_input(str(images))
            if isinstance(named, list):
                return [self(name) for name in named]
        if not isinstance(images, list | tuple):
            return self([images], None if proposals is None else [proposals])[0]
        size = self._options.tile_batch
        if len(images) > size:
            parts = [slice(start, start + size) for start in range(0, len(images), size)]
            found = [self(images[x], None if proposals is None else proposals[x]) for x in parts]
            return [prediction for part in found for prediction in part]
        if not images:
            return []
        loaded = [self.load(image) for image in images]
        predictions = list(map(self.to_prediction, self.detect(loaded, proposals), loaded))
        for prediction, image, given in zip(predictions, loaded, images, strict=True):
            prediction.image = image.original
            prediction.source = given if isinstance(given, str | Path) else None
        return predictions

    @property
    def streams(self) -> int:
        """Number of concurrent calls of `detect` that keep the device busy."""
        return min(2, torch.get_num_threads()) if self.model.device.type == "cpu" else 1

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
                "an image of %d x %d pixels is resized to %d x %d, %.2g times INPUT.MIN_SIZE_TEST, "
                "as INPUT.MAX_SIZE_TEST is %d: unless training images are as long, small objects "
                "are missed. Raise it (max_size), or use tiles (TEST.TILE, detlite predict --tile)",
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
        resized: list[Tensor] = []
        if proposals is not None:
            if len(proposals) != len(loaded):
                raise ValueError(f"got {len(loaded)} images, but proposals for {len(proposals)}")
            for boxes, image in zip(proposals, loaded, strict=True):
                sizes = image.size, size_of(image.network_input)
                boxes = box_ops.to_xyxy(torch.as_tensor(boxes))
                resized.append(box_ops.rescale(boxes, *sizes, self.model.convention))
        batches: dict[tuple[int, ...], list[int]] = {}
        for index, image in enumerate(loaded):
            batches.setdefault(self.padded_size(image), []).append(index)
        detections: dict[int, Detections] = {}
        for batch in batches.values():
            inputs = [loaded[index].network_input for index in batch]
            own = None if proposals is None else [resized[index] for index in batch]
            with torch.no_grad(), autocast(self.dtype, self.model.device):
                results = self.detector.detect(inputs, own, self.score_thresh)
            detections.update(zip(batch, results, strict=True))
        return [detections[index] for index in range(len(loaded))]

    def padded_size(self, image: LoadedImage) -> tuple[int, ...]:
        """Return the (height, width) to which the model pads a batch of this image only."""
        step = max(1, self.model.normalizer.divisibility)
        return tuple(-(-side // step) * step for side in size_of(image.network_input))

    def to_prediction(self, detections: Detections, loaded: LoadedImage) -> Prediction:
        """Map the detections of an image to the original image, and paste their masks."""
        if self._min_scores is not None:
            min_scores = self._min_scores.to(detections.scores.device)
            detections = detections[detections.scores >= min_scores[detections.labels]]
        prediction = to_prediction(detections, loaded, self.model, self.rle)
        prediction.threshold = self.score_thresh
        return prediction


def _read_model(
    path: str | Path,
    opts: Sequence[Any] = (),
    config: str | Path | None = None,
    trust: bool = False,
) -> tuple[DetectionModel, InferenceOptions]:
    """Read an exported model, or build that of a checkpoint, with its options."""
    if Path(path).suffix in _EXPORTED_SUFFIXES:
        # Needs optional packages for all formats but one.
        from detlite.apps.export.exported_detector import read_exported

        cfg, model = read_exported(path, opts, trust)
        return model, replace(build_options(cfg, opts), optimize=False)
    cfg, model = build_model_from_checkpoint(path, opts, config)
    return model, build_options(cfg, opts)


def _min_scores(
    thresholds: Mapping[str, float | None], categories: Sequence[dict[str, Any]], default: float
) -> Tensor:
    """Return the minimum score of each label, [K + 1]; that of dropped ones is infinite."""
    names = [category["name"] for category in categories]
    scores = {name: default if score is None else score for name, score in thresholds.items()}
    for name, score in scores.items():
        if name not in names or not 0 <= score <= 1:
            raise ConfigError(
                f"threshold of category {name!r} ({score}): it must be a number in 0..1, and the "
                f"categories of the model are {', '.join(names)}"
            )
    of_labels = [math.inf, *(scores.get(name, math.inf) for name in names)]
    return torch.tensor(of_labels, device="cpu")


load_checkpoint = Predictor.from_checkpoint
