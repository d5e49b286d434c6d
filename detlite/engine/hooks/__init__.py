"""Hooks: code that the trainer calls at fixed points of its loop."""

from collections.abc import Callable

from yacs.config import CfgNode

from detlite.engine.trainer import Hook
from detlite.registry import Registry

__all__ = ["HOOKS", "Hook", "build_hooks"]

# A builder is called with the config. It may be a class whose __init__ accepts the config.
HOOKS: Registry[Callable[[CfgNode], Hook]] = Registry(
    "hook", on_demand={"WandB": "detlite.apps.trackers", "MLflow": "detlite.apps.trackers"}
)


def build_hooks(cfg: CfgNode) -> list[Hook]:
    """Build the hooks of SOLVER.HOOKS."""
    return [HOOKS.get(name, "SOLVER.HOOKS")(cfg) for name in cfg.SOLVER.HOOKS]
