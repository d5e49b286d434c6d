"""Read the number of valid entries of a padded batch from a GPU, without making it wait.

Importing this module loads torch's compiler, so import it where it is needed.
"""

import torch
from torch import Tensor


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

    @torch.compiler.disable
    def rows(self) -> int:
        """Return a number of rows for all valid entries, at most 1/8 or 8 rows more.

        It is rounded up, because for each new shape a GPU library searches for an algorithm.
        """
        if self._arrival is not None:
            self._arrival.synchronize()
        count = max(int(self._count), 1)
        step = 1 << max(count.bit_length() - 4, 3)
        return min(-(-count // step) * step, self._limit)


@torch.compiler.disable
def read_count(valid: Tensor) -> CountReading:
    """Start to read the number of valid entries, bool [B, N]."""
    return CountReading(valid)
