"""Images with the size that their whole batch is padded to."""

from collections.abc import Iterable

from torch import Tensor


class PaddedBatchImages(list[Tensor]):
    """A part of a batch's images `[3, h, w]`, to be padded to the size of the whole batch.

    Predictions depend slightly on the padding. With this size, (height, width), they do not depend
    on how the batch is divided among processes.
    """

    def __init__(self, images: Iterable[Tensor], padded_size: tuple[int, int]) -> None:
        super().__init__(images)
        self.padded_size = padded_size
