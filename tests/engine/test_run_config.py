"""Freezing of batch norm that sees few images."""

import pytest

from detlite.config.loading import flatten
from detlite.engine.run_config import resolve_frozen_norms


@pytest.mark.parametrize(
    ("norm", "batch", "parts", "expected"),
    [
        ("BN", 4, 1, "BN"),
        ("BN", 3, 1, "FrozenBN"),
        ("BN", 8, 4, "FrozenBN"),
        ("SyncBN", 2, 1, "FrozenBN"),
        ("GN", 1, 1, "GN"),
        ("FrozenBN", 16, 1, "FrozenBN"),
    ],
)
def test_batch_norm_is_frozen_for_small_batches(tiny_config, norm, batch, parts, expected, caplog):
    caplog.set_level("INFO")
    cfg = tiny_config(
        "MODEL.RESNETS.NORM", norm, "SOLVER.IMS_PER_BATCH", batch,
        "SOLVER.ACCUMULATION_STEPS", parts, "MODEL.BACKBONE.FREEZE_NORM_BELOW", 4,
    )  # fmt: skip
    resolved = resolve_frozen_norms(cfg)
    assert expected == resolved.MODEL.RESNETS.NORM
    assert resolved.is_frozen()
    assert ("FREEZE_NORM_BELOW (4)" in caplog.text) == (norm != expected)
    assert norm == cfg.MODEL.RESNETS.NORM
    assert resolve_frozen_norms(resolved) == resolved


@pytest.mark.parametrize(("first", "then", "expected"), [(2, 4, "FrozenBN"), (4, 2, "BN")])
def test_a_resumed_run_keeps_its_norms(tiny_config, first, then, expected):
    def resolve(size, resumed=None):
        cfg = tiny_config(
            "MODEL.RESNETS.NORM", "BN", "SOLVER.IMS_PER_BATCH", size,
            "MODEL.BACKBONE.FREEZE_NORM_BELOW", 3,
        )  # fmt: skip
        return resolve_frozen_norms(cfg, resumed)

    cfg = resolve(first)
    resumed = resolve(then, dict(flatten(cfg)))
    assert resumed.MODEL.RESNETS.NORM == expected == cfg.MODEL.RESNETS.NORM
    assert expected != resolve(then).MODEL.RESNETS.NORM
