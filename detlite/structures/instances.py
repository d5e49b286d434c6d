"""The records that flow through a model: batches of fixed shapes, padded.

Shapes: B images, G ground-truth instances, P proposals, S samples, N predicted boxes and D
detections in an image, each padded to the largest count; K keypoints, M x M cells of a mask. Boxes
are float32 (x1, y1, x2, y2) in pixels of the network's input. Labels are 1, 2, ...; 0 is the
background.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from .masks.packed import PackedMasks

R = TypeVar("R", bound="Record")


class Record:
    """What all records can: be indexed and moved, all fields at once."""

    def __getitem__(self: R, index: Any) -> R:
        """Every field indexed alike, as in `record[0]` (an image) or `record[:, :100]`.

        Not ground truth with masks, which are packed for the batch as a whole.
        """
        return self.map(lambda field: field[index])

    def to(self: R, device: torch.device | str, non_blocking: bool = False) -> R:
        """The record on a device."""
        return self.map(lambda field: field.to(device, non_blocking=non_blocking))

    def map(self: R, function: Callable[[Any], Any]) -> R:
        """The record with a function applied to each field that is there."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]
        return type(self)(**{k: None if v is None else function(v) for k, v in named})


def _record(cls: type[R]) -> type[R]:
    """Registers a record as a pytree: torch.compile and torch.export take it as it is."""
    torch.export.register_dataclass(cls, serialized_type_name=f"detlite.{cls.__name__}")
    return cls


@_record
@dataclass(frozen=True)
class Images(Record):
    """Normalised images at the top left of one tensor, with zeros (the pixel mean) around them."""

    pixels: Tensor  # float [B, 3, H, W]
    sizes: Tensor  # int64 [B, 2], (height, width) of each image without padding


@_record
@dataclass(frozen=True)
class GroundTruth(Record):
    """The objects of each image."""

    boxes: Tensor  # [B, G, 4]
    labels: Tensor  # int64 [B, G]; 0: padding
    masks: PackedMasks | None = None  # B * G instances
    keypoints: Tensor | None = None  # [B, G, K, 3] of (x, y, visibility)

    @property
    def valid(self) -> Tensor:
        """Bool [B, G], False at padding."""
        return self.labels > 0


@_record
@dataclass(frozen=True)
class Proposals(Record):
    """Boxes of the region proposal network, by decreasing score, padding last."""

    boxes: Tensor  # [B, P, 4]
    scores: Tensor  # [B, P], logits
    valid: Tensor  # bool [B, P], False at padding


@_record
@dataclass(frozen=True)
class Samples(Record):
    """The proposals that heads are trained on: as drawn, foreground first and padding last."""

    boxes: Tensor  # [B, S, 4]
    labels: Tensor  # int64 [B, S]; 0: background, -1: padding
    gt_index: Tensor  # int64 [B, S], the ground truth of a foreground sample; else 0


@_record
@dataclass(frozen=True)
class PredictedBoxes(Record):
    """Scored boxes before suppression."""

    boxes: Tensor  # [B, N, 4]
    scores: Tensor  # [B, N] in 0..1
    labels: Tensor  # int64 [B, N]
    valid: Tensor  # bool [B, N], False at padding


@_record
@dataclass(frozen=True)
class Detections(PredictedBoxes):
    """Boxes [B, D] that a model detects, in decreasing order of score, with masks and keypoints."""

    mask_probs: Tensor | None = None  # [B, D, M, M], the mask within each box
    keypoints: Tensor | None = None  # [B, D, K, 3] of (x, y, 1)
    keypoint_scores: Tensor | None = None  # [B, D, K], logits

    def per_image(self) -> list[Detections]:
        """Each image's detections without padding: every field begins with its D_i."""
        return [one[one.valid] for one in (self[i] for i in range(len(self.valid)))]
