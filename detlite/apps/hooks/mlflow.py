"""Report a run to MLflow: pip install 'detlite[mlflow]'."""

from typing import Any

from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.distributed import is_main
from detlite.engine.hooks import HOOKS, Hook
from detlite.engine.hooks.metrics import flatten_metrics


@HOOKS.register("MLflow")
class MLflow(Hook):
    """Logs the config and all metrics. MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME configure it.

    A resumed run continues its run there.
    """

    def __init__(self, cfg: CfgNode) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise ConfigError(
                "SOLVER.HOOKS MLflow needs mlflow: pip install 'detlite[mlflow]'"
            ) from error
        self._mlflow = mlflow
        self._id = ""

    def before_train(self) -> None:
        if not is_main():
            return
        name = self.trainer.output_dir.name
        self._id = self._mlflow.start_run(self._id or None, run_name=name).info.run_id
        self._mlflow.log_text(self.trainer.cfg.dump(), "config.yaml")

    def after_log(self, metrics: dict[str, float]) -> None:
        self._log({f"training/{name}": value for name, value in metrics.items()})

    def after_evaluation(self, metrics: dict[str, dict[str, Any]]) -> None:
        self._log(flatten_metrics(metrics))

    def after_train(self) -> None:
        if is_main():
            self._mlflow.end_run()

    def state_dict(self) -> dict[str, Any]:
        return {"id": self._id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._id = state["id"]

    def _log(self, metrics: dict[str, float]) -> None:
        if is_main():
            self._mlflow.log_metrics(metrics, step=self.trainer.iteration, run_id=self._id)
