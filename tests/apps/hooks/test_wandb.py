"""Weights & Biases gets the metrics of a run, in its offline mode."""

import sys
from typing import Any

import pytest

from detlite.config import ConfigError
from tests.engine.toy import call_at, interrupt, new_toy

HOOK = ["SOLVER.HOOKS", ("WandB",), "SOLVER.TEST_PERIOD", 2, "SOLVER.CHECKPOINT_PERIOD", 2]


@pytest.mark.slow
def test_metrics_and_config_are_logged_and_a_run_is_resumed(
    train_toy: Any, monkeypatch: Any
) -> None:
    wandb = pytest.importorskip("wandb", reason="needs detlite[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    started, logged, init = [], [], wandb.init

    def spy(**options: Any) -> Any:
        run = init(**options)
        log = run.log

        def spy_log(row: dict[str, float], step: int) -> None:
            logged.append((step, row))
            log(row, step)

        monkeypatch.setattr(run, "log", spy_log)
        started.append((run.id, options))
        return run

    monkeypatch.setattr(wandb, "init", spy)
    with pytest.raises(KeyboardInterrupt):
        train_toy(*HOOK, model=call_at(new_toy(), 3, interrupt))
    wandb.finish()
    _, metrics = train_toy(*HOOK, model=new_toy(5), resume=True)
    (first, options), (second, resumed) = started
    assert first == second == resumed["id"]
    assert options["config"]["SOLVER.BASE_LR"] == 0.1
    steps = [step for step, row in logged if "training/loss" in row]
    assert steps == [1, 2, 3, 4]
    step, evaluation = logged[-1]
    assert step == 4
    assert evaluation["val/bbox/AP"] == pytest.approx(metrics["val"]["bbox"]["AP"])


def test_a_missing_package_is_named(train_toy: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'detlite\[wandb\]'"):
        train_toy(*HOOK)
