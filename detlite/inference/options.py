"""Options of inference: the sizes, parts and copies of an image in which objects are detected."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from torch import Tensor
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.data.images.pixels import DEFAULT_OPTIONS, ImageOptions, build_image_options
from detlite.structures import boxes as box_ops

UNMEASURED_THRESHOLD = 0.5  # score, for models without TEST.SCORE_THRESHOLD


@dataclass(frozen=True)
class View:
    """View of an image by a model: resized (see `get_size`), perhaps mirrored."""

    min_size: int
    max_size: int
    flip: bool = False

    def __post_init__(self) -> None:
        for name in ("min_size", "max_size"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r}: must be an integer of at least 1 pixel")

    def mirror(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Map boxes [..., 4] of an image of (height, width) to this view of it, or back."""
        return box_ops.flip(boxes, size[1]) if self.flip else boxes


@dataclass(frozen=True)
class InferenceOptions:
    """Options of a detector for original images.

    Attributes:
        view: size of the network input.
        views: views for test-time augmentation, instead of `view`; empty: no augmentation.
        tile: side of the overlapping tiles that larger images are cut into, in pixels of the
            original image; 0: no tiles. Tiles are resized like images.
        tile_batch: maximum number of tiles, or images of a list, per call of the model.
        dtype: precision of the forward pass: "float32", "float16", "bfloat16", or "auto" for the
            fastest one on the device.
        optimize: detect with a copy of the model by `detlite.optimize`, in `dtype`; otherwise with
            the model itself, under autocast.
        score_thresh: minimum score of the detections of a `Predictor`, which replaces a higher
            threshold of the model (MODEL.ROI_HEADS.SCORE_THRESH); None: the model's threshold.
        images: options for reading image files.
    """

    view: View = View(800, 1333)
    views: Sequence[View] = ()
    tile: int = 0
    tile_batch: int = 8
    dtype: str = "float32"
    optimize: bool = False
    score_thresh: float | None = None
    images: ImageOptions = DEFAULT_OPTIONS

    def __post_init__(self) -> None:
        thresh = 0 if self.score_thresh is None else self.score_thresh
        if not isinstance(thresh, Real) or isinstance(thresh, bool) or not 0 <= thresh <= 1:
            raise ConfigError(f"score threshold {self.score_thresh!r}: must be a number in 0..1")


def build_options(cfg: CfgNode, opts: Sequence[Any] = ()) -> InferenceOptions:
    """Build the options of INPUT, DTYPE and TEST.

    A threshold that the overrides `opts` (alternating keys and values) name is used also if it is
    0, which means "not measured" in a stored config.
    """
    view = View(cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST)
    key, of_model = "MODEL.ROI_HEADS.SCORE_THRESH", cfg.MODEL.ROI_HEADS.SCORE_THRESH
    if cfg.MODEL.META_ARCHITECTURE == "RetinaNet":
        key, of_model = "MODEL.RETINANET.INFERENCE_TH", cfg.MODEL.RETINANET.INFERENCE_TH
    score_thresh = cfg.TEST.SCORE_THRESHOLD or max(UNMEASURED_THRESHOLD, of_model)
    for name, value in (("TEST.SCORE_THRESHOLD", cfg.TEST.SCORE_THRESHOLD), (key, of_model)):
        if name in opts[::2]:
            score_thresh = value
            break
    return InferenceOptions(
        view,
        _build_views(cfg),
        cfg.TEST.TILE,
        cfg.TEST.IMS_PER_BATCH,
        cfg.DTYPE,
        cfg.TEST.OPTIMIZE,
        score_thresh,
        build_image_options(cfg),
    )


def _build_views(cfg: CfgNode) -> list[View]:
    """Build the views of TEST.BBOX_AUG, the one without augmentation first; none if it is off."""
    augmentation = cfg.TEST.BBOX_AUG
    if not augmentation.ENABLED:
        return []
    sizes = [(cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST, augmentation.H_FLIP)]
    for scale in augmentation.SCALES:
        sizes.append((scale, augmentation.MAX_SIZE, augmentation.SCALE_H_FLIP))
    return [
        View(min_size, max_size, flip)
        for min_size, max_size, both in sizes
        for flip in ((False, True) if both else (False,))
    ]
