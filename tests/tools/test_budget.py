"""The code that a training run loads, and the reading list made of it."""

from pathlib import Path

import pytest

from tools import budget

# Limits that are not met yet: remove a line here when its limit is met.
EXCEEDED = {
    "modules that training the demo loads",
    "Python files from tools/train_net.py to RoIAlign",
    "lines of detlite",
    "lines of its core, without apps",
    "lines of tests",
    "config keys",
}
# Lines by which a file may change before the list must be written again.
SLACK_LINES, SLACK = 20, 0.2


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> budget.DemoRun:
    return budget.run_demo(tmp_path_factory.mktemp("demo"))


@pytest.mark.slow
def test_no_further_limit_is_exceeded(demo):
    """`make budget` prints all numbers."""
    rows = budget.budgets(demo)
    assert len({name for name, *_ in rows}) == len(rows)
    assert {name for name, number, limit in rows if number > limit} <= EXCEEDED


def test_the_reading_list_is_up_to_date(demo):
    """Run `python tools/budget.py --write` to update docs/architecture.md."""
    listed = budget.listed_files(budget.PAGE.read_text())
    actual = {f.relative_to("detlite").as_posix(): n for f, n in demo.modules.items() if n > 1}
    assert listed.keys() == actual.keys()
    for name, lines in actual.items():
        assert abs(lines - listed[name]) <= max(SLACK_LINES, SLACK * lines), name


def test_a_file_is_listed_before_those_that_it_imports(demo):
    names = list(budget.listed_files(budget.PAGE.read_text()))
    assert names.index("engine/run.py") < names.index("engine/trainer.py")
    assert names.index("modeling/rcnn.py") < names.index("modeling/roi_heads/roi_heads.py")


def test_a_step_reaches_the_operator(demo):
    assert demo.calls[0] == Path("tools/train_net.py")
    assert demo.calls[-1] == Path("detlite/ops/roi_align.py")
    assert Path("detlite/modeling/rcnn.py") in demo.calls


def test_closures_and_includes():
    names = {str(file) for file in budget.closure("detlite.engine.signals")}
    assert names == {
        f"detlite/{name}.py" for name in ("__init__", "engine/__init__", "engine/signals")
    }
    files = budget.included_files("csrc/common/iou.h")
    assert files[0] == Path("csrc/common/iou.h")
    assert len(files) == len(set(files))
