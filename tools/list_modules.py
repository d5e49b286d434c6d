"""A hook for `tools/budget.py`: list what the first iterations of a training run have loaded."""

import json
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor
from yacs.config import CfgNode

from detlite.engine.hooks import HOOKS, Hook

_ROI_ALIGN = "ops/roi_align.py"


@HOOKS.register("ListModules")
class ListModules(Hook):
    """Writes modules.json to OUTPUT_DIR in iteration 2, and ends the process.

    The file contains the paths of the modules of detlite, each before those that it imports, and
    the files through which the first call of a step reaches RoIAlign.
    """

    def __init__(self, cfg: CfgNode) -> None:
        self._folder = Path(cfg.OUTPUT_DIR)
        self._calls: list[str] = []

    def before_step(self) -> None:
        if self.trainer.iteration == 2:
            sys.setprofile(self._record_calls)

    def after_step(self, losses: dict[str, Tensor]) -> None:
        if self.trainer.iteration < 2:
            return
        # Python moves a module to the end of sys.modules after its imports.
        loaded = [
            m for name, m in reversed(sys.modules.items()) if f"{name}.".startswith("detlite.")
        ]
        files = [getattr(module, "__file__", None) or "" for module in loaded]
        content = {"modules": [f for f in files if f.endswith(".py")], "calls": self._calls}
        (self._folder / "modules.json").write_text(json.dumps(content))
        os._exit(0)

    def _record_calls(self, frame: FrameType | None, event: str, _: Any) -> None:
        if event != "call" or not frame or not frame.f_code.co_filename.endswith(_ROI_ALIGN):
            return
        files: list[str] = []
        while frame:
            files.insert(0, frame.f_code.co_filename)
            frame = frame.f_back
        self._calls = [n for n in dict.fromkeys(files) if "/detlite/" in n or "/tools/" in n]
        sys.setprofile(None)
