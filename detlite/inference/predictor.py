"""Detection on pictures as they are: read, resize, detect, and map back to the picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.apps.export.exported_detector import read_exported
from detlite.conversion.checkpoint.loading import build_model_from_checkpoint
from detlite.data.datasets.coco import keypoint_names
from detlite.data.loading.image_io import MAX_PIXELS
from detlite.data.loading.image_reading import read_image
from detlite.data.transforms.resize import resize_shortest
from detlite.evaluation.results import categories_of
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.precision import autocast
from detlite.ops import paste_masks
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections
from detlite.structures.keypoints import rescale_keypoints
from detlite.structures.masks.formats import to_bitmap
from detlite.structures.masks.pasting import paste_boxes

from .exporters import to_supervision
from .images import Loaded, Picture, as_tensor
from .optimize import build_inference
from .tiling import Tiling, build_tiling, picture_detector
from .tta import View, build_views, size_of


class Prediction(dict[str, Any]):
    """What is found in a picture, by the names that `Predictor` describes."""

    def to_supervision(self) -> Any:
        """It as `supervision.Detections`, see `interchange.to_supervision`."""
        return to_supervision(self)


class Predictor:
    """Calls a model on pictures of any size, resized as in evaluation.

    A call takes a picture: a file's path, what such a file holds as bytes, a PIL image, or uint8
    RGB as an array [H, W, 3] or a tensor [3, H, W]. It returns, in the picture's frame, sorted by
    decreasing score, on the CPU, a dict of

    - `size`: (height, width) of the picture,
    - `boxes` float32 [N, 4], xyxy in pixels,
    - `labels` int64 [N] in 1..K, and `scores` float32 [N] in 0..1,
    - `category_ids` and `names`: lists of N, what the data set calls the labels,
    - with a mask head `masks`, bool [N, H, W] (or COCO RLEs, see `rle`),
    - with a keypoint head `keypoints` float32 [N, P, 3] of (x, y, 1) and `keypoints_scores`
      [N, P], their logits.

    A list of pictures is run as one batch and gives a list. A Fast R-CNN also takes, for each
    picture, `proposals` float [R, 4], xyxy in its pixels. An EXIF orientation of a file is
    followed if the model's convention does. A DataError names a file that cannot be read; a
    TypeError or ValueError says what is wrong with any other picture.

    Args:
        model: a detector as `build_model` gives it, which is put in evaluation mode, or a file
            that `detlite export` wrote.
        min_size: the short side in pixels at which the model sees a picture (800, or what the file
            says),
        max_size: unless the long side would exceed this (1333, or what the file says).
        score_thresh: detections with a lower score are left out.
        rle: give masks as a list of COCO RLEs, not as bitmaps, which take H x W bytes each.
        dtype: arithmetic of the forward pass, by autocast: float32, float16 or bfloat16. Faster
            is float32 here and a model of `detlite.optimize`, as `from_checkpoint` makes one.
        views: look at each picture in all of these views and join what is found (test-time
            augmentation), instead of in one of `min_size` and `max_size`. None: do not, or do what
            the file says where neither size is given.
        tiling: cut larger pictures into tiles, and look at each as at a picture. None: do not, or
            do what the file says.
        max_pixels, picture_bits: of a picture's file, see `data.loading.image_reading.read_image`
            (MAX_PIXELS and 16, or what the file of the model says).
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
        picture_bits: int | None = None,
        tiling: Tiling | None = None,
    ) -> None:
        sizes, limits = (800, 1333), (MAX_PIXELS, 16)
        if isinstance(model, str | Path):
            cfg, model = read_exported(model)
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
        self.picture_bits = picture_bits or limits[1]
        names = keypoint_names(self.categories)
        view = View(self.min_size, self.max_size)
        self.by_picture = picture_detector(self.model, view, views or (), tiling, names)

    @staticmethod
    def from_checkpoint(
        path: str | Path,
        opts: Sequence[Any] = (),
        config: str | Path | None = None,
        score_thresh: float = 0.0,
        rle: bool = False,
    ) -> Predictor:
        """The predictor of a checkpoint that training wrote, by the config stored in it.

        Args:
            path: the checkpoint, `.pth` or `.pkl`, or one of torchvision, detectron2 or
                maskrcnn-benchmark, which is converted and brings the config that its weights need.
                Nothing in it is executed.
            opts: overrides of its config, alternating keys and values. A model with parts of your
                own needs `["IMPORTS", "my_parts.py"]`: those that the file names are not imported.
            config: YAML file of the model, for weights that bring no config, such as an FBNet's.
            score_thresh, rle: as above.

        Raises:
            CheckpointError: a file that is no checkpoint, or that has no config.
            ConfigError: an override that cannot be used, or another convention than that of the
                weights.
        """
        cfg, model = build_model_from_checkpoint(path, opts, config)
        return build_predictor(cfg, model, score_thresh, rle)

    @property
    def categories(self) -> list[dict[str, Any]]:
        """The categories {"id", "name"}; label k is categories[k - 1]."""
        return self.model.categories

    @overload
    def __call__(self, pictures: Picture, proposals: Tensor | None = None) -> Prediction: ...

    @overload
    def __call__(
        self, pictures: list[Any] | tuple[Any, ...], proposals: Sequence[Tensor] | None = None
    ) -> list[Prediction]: ...

    def __call__(self, pictures: Any, proposals: Any = None) -> Prediction | list[Prediction]:
        if not isinstance(pictures, list | tuple):
            return self([pictures], None if proposals is None else [proposals])[0]
        if not pictures:
            return []
        loaded = [self.load(picture) for picture in pictures]
        return list(map(self.in_picture, self.detect(loaded, proposals), loaded))

    @property
    def streams(self) -> int:
        """So many calls of `detect` at a time keep the device busy; two share a CPU's cores."""
        return min(2, torch.get_num_threads()) if self.model.device.type == "cpu" else 1

    def load(self, picture: Picture) -> Loaded:
        """A picture as a call takes it, read and resized."""
        if isinstance(picture, str | Path | bytes):
            follow = self.model.convention.exif_orientation
            image = read_image(picture, None, self.max_pixels, self.picture_bits, follow)
        else:
            image = as_tensor(picture)
        if self.by_picture is not None:  # which resizes by itself
            return Loaded(image, image)
        resize = self.model.convention.resize
        return Loaded(image, resize_shortest(image, self.min_size, self.max_size, resize))

    def detect(self, loaded: Sequence[Loaded], proposals: Any = None) -> list[Detections]:
        """Detections in the images of a batch, each in its own frame; `proposals` as in a call."""
        given, convention = None, self.model.convention
        if proposals is not None:
            if len(proposals) != len(loaded):
                raise ValueError(f"{len(loaded)} pictures, but proposals of {len(proposals)}")
            given = [
                box_ops.rescale(torch.as_tensor(boxes), one.size, size_of(one.image), convention)
                for boxes, one in zip(proposals, loaded, strict=True)
            ]
        detector = self.by_picture or self.model
        with torch.no_grad(), autocast(self.dtype, self.model.device):
            return detector.detect([one.image for one in loaded], given, self.score_thresh)

    def in_picture(self, found: Detections, loaded: Loaded) -> Prediction:
        """What a call returns, from the detections in an image."""
        net_size, size = size_of(loaded.image), loaded.size
        kept, convention = found.to("cpu"), self.model.convention
        boxes = box_ops.rescale(kept.boxes.float(), net_size, size, convention)
        categories = categories_of(kept.labels, self.categories)
        prediction = Prediction(
            size=size,
            boxes=boxes,
            labels=kept.labels,
            scores=kept.scores.float(),
            category_ids=[category["id"] for category in categories],
            names=[category["name"] for category in categories],
        )
        if kept.mask_probs is not None:
            rles = paste_masks(
                kept.mask_probs,
                paste_boxes(boxes, kept.mask_probs.shape[-1], convention),
                size,
                self.model.mask_threshold,
            )
            prediction["masks"] = rles if self.rle else _bitmaps(rles, size)
        if kept.keypoints is not None:
            prediction["keypoints"] = rescale_keypoints(kept.keypoints, net_size, size)
            prediction["keypoints_scores"] = kept.keypoint_scores
        return prediction


def build_predictor(
    cfg: CfgNode, model: DetectionModel, score_thresh: float = 0.0, rle: bool = False
) -> Predictor:
    """The predictor that sees pictures as evaluation does: by INPUT, DTYPE and TEST."""
    return _configured(cfg, *build_inference(cfg, model), score_thresh, rle)


def read_predictor(
    path: str | Path, opts: Sequence[Any] = (), score_thresh: float = 0.0, rle: bool = False
) -> Predictor:
    """The predictor of a file of `detlite export`, with overrides, see `read_exported`."""
    cfg, model = read_exported(path, opts)
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
    return cfg.DATASETS.MAX_PIXELS, cfg.INPUT.PICTURE_BITS


load_checkpoint = Predictor.from_checkpoint


def _bitmaps(rles: Sequence[dict[str, Any]], size: tuple[int, int]) -> Tensor:
    bitmaps = torch.zeros((len(rles), *size), dtype=torch.bool)
    for bitmap, rle in zip(bitmaps, rles, strict=True):
        bitmap.copy_(torch.from_numpy(to_bitmap(rle, *size)))
    return bitmaps
