"""The toy detector of the engine's tests."""

from tests.engine.conftest import blocks, make_cfg, make_sets, toy, train_toy  # noqa: F401
