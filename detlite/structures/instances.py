"""Records of padded batches: images, ground truth, proposals, samples, predictions, detections.

Shapes: B images; G ground-truth instances, P proposals, S samples, N predicted boxes and D
detections per image, padded to the largest number; K keypoints; M x M cells of a mask. Boxes are
float32 (x1, y1, x2, y2) in pixels of the network's input. Labels are 1, 2, ...; 0 is the
background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from detlite.conventions import Convention

from . import to_device
from .boxes import rescale
from .masks.packed import PackedMasks
from .object_fields import Affine, Size, move_fields, move_points, object_field, resizing

# Own fields, and the outputs of TEST.EXTRA_OUTPUTS: "class_scores" [B, D, K - 1] in 0..1 of all
# classes but the background, and "features" [B, D, C] of the box head.
ExtraFields = dict[str, Tensor]
R = TypeVar("R", bound="Record")


class PaddedBatchImages(list[Tensor]):
    """A part of a batch's images `[3, h, w]`, to be padded to the size of the whole batch.

    Predictions depend slightly on the padding. With this size, (height, width), they do not depend
    on how the batch is divided among processes.
    """

    def __init__(self, images: Iterable[Tensor], padded_size: Size) -> None:
        super().__init__(images)
        self.padded_size = padded_size


class Record:
    """Base class of records: index, move or transform all fields together."""

    def __getitem__(self: R, index: Any) -> R:
        """Index every field, as in `record[0]` (one image) or `record[:, :100]`.

        Ground truth with masks cannot be indexed, because masks are packed for the whole batch.
        """
        return self.map(lambda field: field[index])

    def to(self: R, device: torch.device | str) -> R:
        """Return the record on a device, see `to_device`."""
        return self.map(lambda x: to_device(x, device) if isinstance(x, Tensor) else x.to(device))

    def map(self: R, function: Callable[[Any], Any]) -> R:
        """Apply a function to each field that is not None."""

        def apply(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: function(field) for name, field in value.items()}
            return None if value is None else function(value)

        names = (entry.name for entry in fields(self))  # type: ignore[arg-type]
        return type(self)(**{name: apply(getattr(self, name)) for name in names})


def _record(cls: type[R]) -> type[R]:
    """Register a record as a pytree, for torch.compile and torch.export."""
    torch.export.register_dataclass(cls, serialized_type_name=f"detlite.{cls.__name__}")
    return cls


@_record
@dataclass(frozen=True)
class Images(Record):
    """Normalized images at the top left of one tensor, padded with zeros (the pixel mean)."""

    pixels: Tensor  # float [B, 3, H, W]
    sizes: Tensor  # int64 [B, 2], (height, width) of each image before padding


@_record
@dataclass(frozen=True)
class GroundTruth(Record):
    """Ground-truth objects of each image."""

    boxes: Tensor  # [B, G, 4]
    labels: Tensor  # int64 [B, G]; 0 for padding
    masks: PackedMasks | None = None  # B * G instances
    keypoints: Tensor | None = None  # [B, G, K, 3] of (x, y, visibility)
    ignored: Tensor | None = None  # [B, M, 4], regions that are not background, padded with zeros
    extra_fields: ExtraFields = field(default_factory=dict)  # [B, G, ...], see `OBJECT_FIELDS`

    @property
    def valid(self) -> Tensor:
        """Bool [B, G], False for padding."""
        return self.labels > 0


@_record
@dataclass(frozen=True)
class Proposals(Record):
    """Proposals by decreasing score, padding last."""

    boxes: Tensor  # [B, P, 4]
    scores: Tensor  # [B, P], logits
    valid: Tensor  # bool [B, P], False for padding


@_record
@dataclass(frozen=True)
class Samples(Record):
    """Proposals sampled to train the heads: foreground first, padding last."""

    boxes: Tensor  # [B, S, 4]
    labels: Tensor  # int64 [B, S]; 0 for background, -1 for padding
    gt_index: Tensor  # int64 [B, S], the ground truth of a foreground sample, otherwise 0


@_record
@dataclass(frozen=True)
class PredictedBoxes(Record):
    """Scored boxes before suppression."""

    boxes: Tensor  # [B, N, 4]
    scores: Tensor  # [B, N] in 0..1
    labels: Tensor  # int64 [B, N]
    valid: Tensor  # bool [B, N], False for padding
    extra_fields: ExtraFields = field(default_factory=dict)  # [B, N, ...]


@_record
@dataclass(frozen=True)
class Detections(PredictedBoxes):
    """Boxes [B, D] that a model detects, in decreasing order of score, with masks and keypoints."""

    mask_probs: Tensor | None = None  # [B, D, M, M], the mask within each box
    mask_boxes: Tensor | None = None  # [B, D, 4], boxes that masks fill; None: `boxes`
    keypoints: Tensor | None = None  # [B, D, K, 3] of (x, y, 1)
    # No name may be the start of another one: torch.export confuses them in its checks.
    keypoint_scores: Tensor | None = None  # [B, D, K], logits

    def rescale(self, from_size: Size, to_size: Size, convention: Convention) -> Detections:
        """Scale boxes and keypoints from one (height, width) of their image to another."""
        return self.map_coordinates(
            lambda boxes: rescale(boxes, from_size, to_size, convention),
            resizing(from_size, to_size),
        )

    def map_coordinates(self, boxes: Callable[[Tensor], Tensor], matrix: Affine) -> Detections:
        """Apply a function to `boxes` and `mask_boxes`, and move keypoints and own fields."""
        return replace(
            self,
            boxes=boxes(self.boxes),
            mask_boxes=None if self.mask_boxes is None else boxes(self.mask_boxes),
            keypoints=None if self.keypoints is None else move_points(self.keypoints, matrix),
            extra_fields=move_fields(self.extra_fields, matrix),
        )

    def with_fields(self, values: Mapping[str, Tensor]) -> Detections:
        """Return detections with further fields: attributes of this class, or own fields."""
        typed = {name: values[name] for name in values.keys() & vars(self).keys()}
        own = {name: value for name, value in values.items() if name not in typed}
        return replace(self, extra_fields=self.extra_fields | own, **typed)

    def named_fields(self) -> dict[str, Tensor]:
        """Return all fields by name that are not None, with the extra fields."""
        typed = {name: value for name, value in vars(self).items() if value is not None}
        own: ExtraFields = typed.pop("extra_fields")
        return typed | {object_field(name).name: value for name, value in own.items()}

    def public_fields(self) -> dict[str, Tensor]:
        """Return the fields that users get, without masks, which must be pasted first.

        Scores of keypoints have torchvision's name.
        """
        hidden = ("valid", "mask_probs", "mask_boxes")
        names = {"keypoint_scores": "keypoints_scores"}
        named = self.named_fields().items()
        return {names.get(name, name): value for name, value in named if name not in hidden}

    @property
    def pasting_boxes(self) -> Tensor:
        """The boxes [B, D, 4] that masks fill."""
        return self.boxes if self.mask_boxes is None else self.mask_boxes

    def per_image(self) -> list[Detections]:
        """Return the detections of each image without padding, with fields `[D_i, ...]`."""
        return [self[image][valid] for image, valid in enumerate(self.valid)]
