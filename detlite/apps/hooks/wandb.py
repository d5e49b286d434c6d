"""Report a run to Weights & Biases: pip install 'detlite[wandb]'."""

from typing import Any

from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.config.loading import flatten
from detlite.distributed import is_main
from detlite.engine.hooks import HOOKS, Hook
from detlite.engine.hooks.metrics import flatten_metrics


@HOOKS.register("WandB")
class WandB(Hook):
    """Logs the config and all metrics. WANDB_PROJECT, WANDB_MODE etc. configure it.

    A resumed run continues its run there.
    """

    def __init__(self, cfg: CfgNode) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                "SOLVER.HOOKS WandB needs wandb: pip install 'detlite[wandb]'"
            ) from error
        self._wandb = wandb
        self._run: Any = None
        self._id = ""

    def before_train(self) -> None:
        if not is_main():
            return
        folder, config = self.trainer.output_dir, dict(flatten(self.trainer.cfg))
        self._run = self._wandb.init(
            name=folder.name, dir=folder, config=config, id=self._id or None, resume="allow"
        )
        self._id = self._run.id

    def after_log(self, metrics: dict[str, float]) -> None:
        if self._run:
            training = {f"training/{name}": value for name, value in metrics.items()}
            self._run.log(training, step=self.trainer.iteration)

    def after_evaluation(self, metrics: dict[str, dict[str, Any]]) -> None:
        if self._run:
            self._run.log(flatten_metrics(metrics), step=self.trainer.iteration)

    def after_train(self) -> None:
        if self._run:
            self._run.finish()

    def state_dict(self) -> dict[str, Any]:
        return {"id": self._id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._id = state["id"]
