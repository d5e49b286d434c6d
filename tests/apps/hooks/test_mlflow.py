"""MLflow gets the metrics of a run, in a local folder."""

import sys
from pathlib import Path
from typing import Any

import pytest

from detlite.config import ConfigError
from tests.engine.toy import call_at, interrupt, new_toy

HOOK = ["SOLVER.HOOKS", ("MLflow",), "SOLVER.TEST_PERIOD", 2, "SOLVER.CHECKPOINT_PERIOD", 2]


def test_metrics_and_config_are_logged_and_a_run_is_resumed(
    train_toy: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs detlite[mlflow]")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with pytest.raises(KeyboardInterrupt):
        train_toy(*HOOK, model=call_at(new_toy(), 3, interrupt))
    mlflow.end_run()
    _, metrics = train_toy(*HOOK, model=new_toy(5), resume=True)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    history = client.get_metric_history(run.info.run_id, "training/loss")
    assert [value.step for value in history] == [1, 2, 3, 4]
    assert run.data.metrics["val/bbox/AP"] == pytest.approx(metrics["val"]["bbox"]["AP"])
    config = client.download_artifacts(run.info.run_id, "config.yaml", str(tmp_path))
    assert "BASE_LR: 0.1" in Path(config).read_text()


def test_a_missing_package_is_named(train_toy: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r"pip install 'detlite\[mlflow\]'"):
        train_toy(*HOOK)
