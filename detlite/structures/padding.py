"""Pack and unpack the valid entries of padded batches.

Heads compute packed rows. With dynamic shapes these are the valid entries only, so an image with
three objects costs three masks. With static shapes they are all entries, including padding, and no
shape depends on a value: torch.compile, torch.export and training without waiting for the GPU need
that. Only this module branches on `static_shapes`. Training of heads with expensive rows limits
their number by a `CountReading`.

Shapes: B images, N entries per image, R packed rows.
"""

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # unlike torch.compiler.disable, loads no compiler
from torch.nn.utils.rnn import pad_sequence


class RowPacking:
    """Selects the rows to compute from a padded batch.

    Args:
        valid: bool [B, N].
        static_shapes: keep padding, so that R is B * N.
        rows: with static shapes, R; at least the number of valid entries, which then come first.

    Attributes:
        index: int64 [R], the entry of each row: image * N + index in the image.
        valid: bool [R], False for padding.
    """

    def __init__(self, valid: Tensor, static_shapes: bool, rows: int | None = None) -> None:
        self.static_shapes = static_shapes
        self._shape = valid.shape
        flat = valid.flatten()
        if static_shapes and rows is not None:
            self.index = flat.int().argsort(descending=True, stable=True)[:rows]
            self.valid = flat[self.index]
        elif static_shapes:
            self.index = torch.arange(flat.shape[0], device=valid.device)
            self.valid = flat
        else:
            self.index = flat.nonzero()[:, 0]
            self.valid = torch.ones_like(self.index, dtype=torch.bool)

    @property
    def image(self) -> Tensor:
        """int64 [R], the image of each row."""
        return self.index // max(self._shape[1], 1)

    def pack(self, entries: Tensor) -> Tensor:
        """Convert entries [B, N, ...] to rows [R, ...]."""
        return entries.flatten(0, 1)[self.index]

    def unpack(self, rows: Tensor) -> Tensor:
        """Convert rows [R, ...] to entries [B, N, ...], zeros where there is no row."""
        entries = rows.new_zeros((self._shape[0] * self._shape[1], *rows.shape[1:]))
        return entries.index_copy(0, self.index, rows).unflatten(0, self._shape)

    def row_numbers(self) -> Tensor:
        """Return the row of each entry, int64 [B, N]; undefined where an entry has no row."""
        return self.unpack(torch.arange(self.index.shape[0], device=self.index.device))

    def rois(self, boxes: Tensor) -> Tensor:
        """Convert boxes [B, N, 4] to RoIs [R, 5] of (image index or -1 for padding, xyxy)."""
        image = torch.where(self.valid, self.image, -1)
        return torch.cat([image[:, None].to(boxes.dtype), self.pack(boxes)], dim=1)


class CountReading:
    """Number of valid entries, bool [B, N], on its way from a GPU to the host.

    The device continues with the operations called between construction and `rows`, so it is not
    idle while the host waits.
    """

    def __init__(self, valid: Tensor) -> None:
        self._limit, count = valid.numel(), valid.sum()
        self._arrival = torch.cuda.Event() if count.is_cuda else None
        self._count = count.to("cpu", non_blocking=True) if count.is_cuda else count
        if self._arrival is not None:
            self._arrival.record()

    @_disable_dynamo
    def rows(self) -> int:
        """Return a number of rows for all valid entries, at most 1/8 or 8 rows more.

        It is rounded up, because for each new shape a GPU library searches for an algorithm.
        """
        if self._arrival is not None:
            self._arrival.synchronize()
        count = max(int(self._count), 1)
        step = 1 << max(count.bit_length() - 4, 3)
        return min(-(-count // step) * step, self._limit)


@_disable_dynamo
def read_count(valid: Tensor) -> CountReading:
    """Start to read the number of valid entries, bool [B, N]."""
    return CountReading(valid)


def padded_length(valid: Tensor, static_shapes: bool) -> int:
    """Return the largest number of valid entries, bool [B, N], of an image; N if static."""
    if static_shapes:
        return valid.shape[1]
    return int(valid.sum(dim=1).max()) if len(valid) else 0


def first_valid(valid: Tensor, limit: int, static_shapes: bool) -> tuple[Tensor, Tensor]:
    """Find the first valid entries, bool [B, N], of each image.

    Returns:
        Indices of the valid entries in order, int64 [B, M], and bool [B, M], False (with index 0)
        for padding. M is at most `limit`: with static shapes min(limit, N), otherwise the largest
        number of an image.
    """
    count = valid.sum(dim=1)
    limit = min(limit, padded_length(valid, static_shapes))
    slot = valid.cumsum(dim=1) - 1
    # All other entries share an additional slot, which is cut off below.
    slot = torch.where(valid & (slot < limit), slot, limit)
    entries = torch.arange(valid.shape[1], device=valid.device).expand_as(slot)
    index = torch.zeros((valid.shape[0], limit + 1), dtype=torch.int64, device=valid.device)
    index = index.scatter(1, slot, entries)[:, :limit]
    kept = torch.arange(limit, device=valid.device) < count[:, None]
    return torch.where(kept, index, 0), kept


def top_scores(
    scores: Tensor, threshold: float, limit: int, static_shapes: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the at most `limit` highest scores [B, N] of each image above a threshold of at least 0.

    Returns:
        Scores [B, M] in decreasing order, their indices int64 [B, M], and bool [B, M], False for
        padding. M is as in `first_valid`.
    """
    if static_shapes:
        above = torch.where(scores > threshold, scores, -1.0)
        best, index = above.topk(min(limit, scores.shape[1]), dim=1)
        return best, index, best >= 0
    # Sort only the scores above the threshold: a few of millions.
    candidates = [(row > threshold).nonzero()[:, 0] for row in scores]
    pairs = zip(scores, candidates, strict=True)
    tops = [row[index].topk(min(limit, len(index))) for row, index in pairs]
    kept = [index[top.indices] for index, top in zip(candidates, tops, strict=True)]
    best = pad_sequence([top.values for top in tops], batch_first=True, padding_value=-1.0)
    return best, pad_sequence(kept, batch_first=True), best >= 0


def gather(entries: Tensor, index: Tensor) -> Tensor:
    """Select entries [B, M, ...] of [B, N, ...] by their indices [B, M] in each image."""
    image = torch.arange(index.shape[0], device=index.device)[:, None]
    return entries[image, index]
