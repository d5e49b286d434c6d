"""Padding left out, where shapes may vary: the one place that knows about it.

Heads compute rows. In eager mode these are the valid entries of a padded batch, so that an image
with three objects costs three masks. With fixed shapes (compiled, exported, or trained on a device
whose values must not be waited for) they are all entries, padding too. The code around is the same.

Shapes: B images, N entries an image, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

# None: as the device has it, see `shapes_vary`.
_vary: ContextVar[bool | None] = ContextVar("shapes_vary", default=None)


def fixed_shapes() -> AbstractContextManager[None]:
    """Within it every shape follows from the arguments' shapes, never from values."""
    return _setting(False)


def varying_shapes() -> AbstractContextManager[None]:
    """Within it padding is left out on every device, which may wait for values.

    For whoever reads the results at once anyway. `fixed_shapes` around it goes before.
    """
    return _setting(_vary.get() is not False)


@contextmanager
def _setting(vary: bool) -> Iterator[None]:
    token = _vary.set(vary)
    try:
        yield
    finally:
        _vary.reset(token)


def shapes_vary(like: Tensor, unpadded: bool = False) -> bool:
    """Whether a shape may follow from values.

    By default on the CPU alone, where nothing waits; with `unpadded` on every device.
    """
    if torch.compiler.is_compiling():
        return False
    vary = _vary.get()
    return (unpadded or like.device.type == "cpu") if vary is None else vary


class Rows:
    """Which entries of a padded batch are computed.

    Args:
        valid: bool [B, N].
        unpadded: leave padding out on a device that must wait for it too, unless shapes are fixed.

    Attributes:
        index: int64 [R], the entry (image * N + place) of each row.
        valid: bool [R]; False where a row is padding, which only fixed shapes have.
    """

    def __init__(self, valid: Tensor, unpadded: bool = False) -> None:
        self._shape = valid.shape
        flat = valid.flatten()
        if shapes_vary(valid, unpadded):
            self.index = flat.nonzero()[:, 0]
            self.valid = torch.ones_like(self.index, dtype=torch.bool)
        else:
            self.index = torch.arange(flat.shape[0], device=valid.device)
            self.valid = flat

    @property
    def image(self) -> Tensor:
        """int64 [R], the image of each row."""
        return self.index // max(self._shape[1], 1)

    def pack(self, entries: Tensor) -> Tensor:
        """[B, N, ...] -> [R, ...]."""
        return entries.flatten(0, 1)[self.index]

    def unpack(self, rows: Tensor) -> Tensor:
        """[R, ...] -> [B, N, ...], zeros where there is no row."""
        entries = rows.new_zeros((self._shape[0] * self._shape[1], *rows.shape[1:]))
        return entries.index_copy(0, self.index, rows).unflatten(0, self._shape)

    def position(self) -> Tensor:
        """int64 [B, N], the row of each entry; meaningless where it has none."""
        return self.unpack(torch.arange(self.index.shape[0], device=self.index.device))

    def rois(self, boxes: Tensor) -> Tensor:
        """Boxes [B, N, 4] -> RoIs [R, 5] that begin with the image's index, or -1 at padding."""
        image = torch.where(self.valid, self.image, -1)
        return torch.cat([image[:, None].to(boxes.dtype), self.pack(boxes)], dim=1)


def leading(valid: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Where the valid entries are, those of each image in front.

    Args:
        valid: bool [B, N].
        most: how many of an image are kept, the first of them.

    Returns:
        int64 [B, M] and bool [B, M]: places of the valid entries in order, and False (at place 0)
        for padding. M is `most`, or what the fullest image has where shapes may vary.
    """
    count = valid.sum(dim=1)
    most = min(most, valid.shape[1])
    if shapes_vary(valid):
        most = min(most, int(count.max())) if len(count) else 0
    slot = valid.cumsum(dim=1) - 1
    # All others share one more, cut off below.
    slot = torch.where(valid & (slot < most), slot, most)
    place = torch.arange(valid.shape[1], device=valid.device).expand_as(slot)
    index = torch.zeros((valid.shape[0], most + 1), dtype=torch.int64, device=valid.device)
    index = index.scatter(1, slot, place)[:, :most]
    kept = torch.arange(most, device=valid.device) < count[:, None]
    return torch.where(kept, index, 0), kept


def highest(scores: Tensor, threshold: float, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The highest scores of each image above a threshold.

    Args:
        scores: [B, N], each at least 0.
        threshold: at least 0; scores must be higher.
        most: how many of an image are kept.

    Returns:
        Scores [B, M] in decreasing order, their places int64 [B, M], and bool [B, M], False for
        padding. M is `most` (or N, if that is less), or what the fullest image has where shapes
        vary.
    """
    if shapes_vary(scores):
        # Few of millions are above it: they alone are sorted.
        places = [(own > threshold).nonzero()[:, 0] for own in scores]
        found = zip(scores, places, strict=True)
        tops = [own[place].topk(min(most, len(place))) for own, place in found]
        index = [place[top.indices] for place, top in zip(places, tops, strict=True)]
        best = pad_sequence([top.values for top in tops], batch_first=True, padding_value=-1.0)
        return best, pad_sequence(index, batch_first=True), best >= 0
    above = torch.where(scores > threshold, scores, -1.0)
    best, place = above.topk(min(most, scores.shape[1]), dim=1)
    return best, place, best >= 0


def gather(entries: Tensor, index: Tensor) -> Tensor:
    """Entries [B, N, ...] at places [B, M] of each image -> [B, M, ...]."""
    image = torch.arange(index.shape[0], device=index.device)[:, None]
    return entries[image, index]
