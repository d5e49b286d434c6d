"""Fixtures of the programs in tools/."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def run_tool(repo_root: Path) -> Callable[..., int]:
    """`run_tool("train_net.py", "--config", file)`: run a program here and return its status."""

    def run(program: str, *arguments: object) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [program, *map(str, arguments)])
            patch.delenv("WORLD_SIZE", raising=False)
            with pytest.raises(SystemExit) as exit_info:
                runpy.run_path(str(repo_root / "tools" / program), run_name="__main__")
        return int(exit_info.value.code or 0)

    return run
