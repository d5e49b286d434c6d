"""Share the small datasets of tests/data."""

from tests.data.conftest import cache, content, settled, small_cfg, write_set

__all__ = ["cache", "content", "settled", "small_cfg", "write_set"]
