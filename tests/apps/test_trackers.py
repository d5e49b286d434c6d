"""Log metrics of a run to MLflow in a local folder and to Weights & Biases in offline mode."""

# ruff: noqa: F811 (fixtures that are imported)

import sys
from pathlib import Path
from typing import Any

import pytest

from detlite.config import ConfigError
from tests.engine.conftest import blocks, make_cfg, make_sets, toy, train_toy  # noqa: F401
from tests.engine.toy import call_at, interrupt, new_toy

OPTIONS = ["SOLVER.TEST_PERIOD", 2, "SOLVER.CHECKPOINT_PERIOD", 2]


def test_mlflow_logs_metrics_and_config_of_a_resumed_run(train_toy, monkeypatch, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="needs detlite[mlflow]")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with pytest.raises(KeyboardInterrupt):
        train_toy(*OPTIONS, "SOLVER.HOOKS", ("MLflow",), model=call_at(new_toy(), 3, interrupt))
    assert mlflow.active_run() is None
    assert mlflow.search_runs(["0"])["status"].tolist() == ["FAILED"]
    _, metrics = train_toy(*OPTIONS, "SOLVER.HOOKS", ("MLflow",), model=new_toy(5), resume=True)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "training/loss")
    assert [value.step for value in history] == [1, 2, 3, 4]
    assert run.data.metrics["val/bbox/AP"] == pytest.approx(metrics["val"]["bbox"]["AP"])
    config = client.download_artifacts(run.info.run_id, "config.yaml", str(tmp_path))
    assert "BASE_LR: 0.1" in Path(config).read_text()


@pytest.mark.slow
def test_wandb_logs_metrics_and_config_of_a_resumed_run(train_toy, monkeypatch):
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
        train_toy(*OPTIONS, "SOLVER.HOOKS", ("WandB",), model=call_at(new_toy(), 3, interrupt))
    assert wandb.run is None
    _, metrics = train_toy(*OPTIONS, "SOLVER.HOOKS", ("WandB",), model=new_toy(5), resume=True)
    (first, options), (second, resumed) = started
    assert first == second == resumed["id"]
    assert options["config"]["SOLVER.BASE_LR"] == 0.1
    steps = [step for step, row in logged if "training/loss" in row]
    assert steps == [1, 2, 3, 4]
    step, evaluation = logged[-1]
    assert step == 4
    assert evaluation["val/bbox/AP"] == pytest.approx(metrics["val"]["bbox"]["AP"])


@pytest.mark.parametrize(("hook", "package"), [("MLflow", "mlflow"), ("WandB", "wandb")])
def test_a_missing_package_is_named(train_toy, monkeypatch, hook, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"pip install 'detlite\[{package}\]'"):
        train_toy("SOLVER.HOOKS", (hook,))
