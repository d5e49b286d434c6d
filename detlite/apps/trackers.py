"""Hooks that log training runs to experiment trackers."""

from abc import abstractmethod
from typing import Any, ClassVar

from yacs.config import CfgNode

from detlite.apps.optional_packages import import_optional
from detlite.config.loading import flatten
from detlite.distributed import is_main
from detlite.engine.hooks import HOOKS, Hook
from detlite.engine.hooks.metrics import flatten_metrics


class Tracker(Hook):
    """Logs the config and all metrics with a package. A resumed run continues the logged run."""

    package: ClassVar[str]

    def __init__(self, cfg: CfgNode) -> None:
        self._package = import_optional(self.package, f"detlite[{self.package}]")
        self._id = ""
        self._failed = True

    @abstractmethod
    def start(self) -> str:
        """Start or continue a run with the config, and return its id."""

    @abstractmethod
    def log(self, metrics: dict[str, float], step: int) -> None:
        """Log metrics of an iteration."""

    @abstractmethod
    def finish(self, failed: bool) -> None:
        """End the run."""

    def before_train(self) -> None:
        if is_main():
            self._id = self.start()

    def after_log(self, metrics: dict[str, float]) -> None:
        if is_main():
            training = {f"training/{name}": value for name, value in metrics.items()}
            self.log(training, self.trainer.iteration)

    def after_evaluation(self, metrics: dict[str, dict[str, Any]]) -> None:
        if is_main() and self._id:  # `detlite test` starts no run
            known = {k: v for k, v in flatten_metrics(metrics).items() if v is not None}
            self.log(known, self.trainer.iteration)

    def after_train(self) -> None:
        self._failed = False

    def close(self) -> None:
        if is_main():
            self.finish(self._failed)

    def state_dict(self) -> dict[str, Any]:
        return {"id": self._id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._id = state["id"]


@HOOKS.register("WandB")
class WandB(Tracker):
    """Reports to Weights & Biases. WANDB_PROJECT, WANDB_MODE etc. configure it."""

    package = "wandb"

    def start(self) -> str:
        folder, config = self.trainer.output_dir, dict(flatten(self.trainer.cfg))
        self._run = self._package.init(
            name=folder.name, dir=folder, config=config, id=self._id or None, resume="allow"
        )
        return str(self._run.id)

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._run.log(metrics, step=step)

    def finish(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


@HOOKS.register("MLflow")
class MLflow(Tracker):
    """Reports to MLflow. MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME configure it."""

    package = "mlflow"

    def start(self) -> str:
        run = self._package.start_run(self._id or None, run_name=self.trainer.output_dir.name)
        self._package.log_text(self.trainer.cfg.dump(), "config.yaml")
        return str(run.info.run_id)

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._package.log_metrics(metrics, step=step, run_id=self._id)

    def finish(self, failed: bool) -> None:
        self._package.end_run("FAILED" if failed else "FINISHED")
