"""The fixtures of small datasets."""

from tests.data.conftest import (  # noqa: F401
    cache,
    content,
    s3,
    settled,
    small_cfg,
    write_set,
)
