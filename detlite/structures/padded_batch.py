"""Images that know the size to which their batch is padded."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


class ImagesOnCanvas(list[Tensor]):
    """Images [3, h, w] of a batch that others have a part of: all are padded to one size.

    What a network finds depends a little on the padding, and should not on who has which part.

    Attributes:
        canvas: (height, width) that holds every image of the batch.
    """

    def __init__(self, images: Iterable[Tensor], canvas: tuple[int, int]) -> None:
        super().__init__(images)
        self.canvas = canvas
