"""Hooks of users: registration, calls and state."""

from pathlib import Path

import pytest

from detlite.checkpoint.files import read_checkpoint
from detlite.config import ConfigError
from detlite.engine.hooks import HOOKS, Hook
from tests.engine.toy import call_at, interrupt, new_toy, read_final, read_metrics


class Recorder(Hook):
    """Records all calls, the losses since the start of the run, and stops at an iteration."""

    def __init__(self, stop_at=None):
        self.calls, self.losses, self.stop_at = [], [], stop_at

    def _record(self, name):
        self.calls.append((name, self.trainer.iteration))

    def before_train(self):
        self._record("before_train")
        if self.stop_at is not None and self.trainer.iteration >= self.stop_at:
            self.trainer.finish()

    def before_step(self):
        self._record("before_step")

    def after_step(self, losses):
        self._record("after_step")
        self.losses.append(float(sum(losses.values())))
        if self.trainer.iteration == self.stop_at:
            self.trainer.finish()

    def after_log(self, metrics):
        self._record("after_log")
        assert metrics["loss"] > 0
        assert metrics["lr"] > 0

    def after_evaluation(self, metrics):
        self._record("after_evaluation")
        assert metrics["val"]["bbox"]["AP"] > 0
        assert self.trainer.checkpoint.exists()

    def after_train(self):
        self._record("after_train")

    def close(self):
        self._record("close")

    def state_dict(self):
        return {"losses": self.losses}

    def load_state_dict(self, state):
        self.losses = list(state["losses"])


def test_hooks_are_called_around_steps(train_toy):
    hook = Recorder()
    opts = ["SOLVER.MAX_ITER", 2, "SOLVER.LOG_PERIOD", 2, "SOLVER.TEST_PERIOD", 1]
    cfg, _ = train_toy(*opts, hooks=[hook])
    assert hook.calls == [
        ("before_train", 0),
        *[("before_step", 1), ("after_step", 1), ("after_evaluation", 1)],
        *[("before_step", 2), ("after_step", 2), ("after_log", 2), ("after_evaluation", 2)],
        *[("after_train", 2), ("close", 2)],
    ]
    mean = read_metrics(cfg.OUTPUT_DIR)[0]["loss"]
    assert mean == pytest.approx(sum(hook.losses) / 2)


def test_the_state_of_hooks_is_resumed(train_toy, tmp_path):
    straight, opts = [Recorder(), Recorder()], ["SOLVER.CHECKPOINT_PERIOD", 2]
    train_toy(*opts, "OUTPUT_DIR", str(tmp_path / "straight"), hooks=straight)
    opts += ["OUTPUT_DIR", str(tmp_path / "resumed")]
    interrupted = [Recorder(), Recorder()]
    with pytest.raises(KeyboardInterrupt):
        train_toy(*opts, model=call_at(new_toy(), 4, interrupt), hooks=interrupted)
    assert [hook.calls[-1][0] for hook in interrupted] == ["close", "close"]
    resumed = [Recorder(), Recorder(), Recorder()]  # the last one is new
    train_toy(*opts, model=new_toy(5), seed=99, resume=True, hooks=resumed)
    assert resumed[0].losses == resumed[1].losses == straight[0].losses
    assert len(straight[0].losses) == 4
    assert resumed[2].losses == straight[0].losses[2:]
    final = read_final(tmp_path / "resumed")
    assert list(final.training["hooks"]) == [
        "Recorder", "Recorder 2", "Recorder 3", "BestCheckpoint"
    ]  # fmt: skip


def test_a_hook_ends_a_run(train_toy):
    opts = ["SOLVER.MAX_ITER", 9, "SOLVER.LOG_PERIOD", 5]
    cfg, metrics = train_toy(*opts, hooks=[Recorder(stop_at=3)])
    final = Path(cfg.OUTPUT_DIR) / "model_final.pth"
    assert read_checkpoint(final).training["iteration"] == 3
    assert [row["iteration"] for row in read_metrics(cfg.OUTPUT_DIR)] == [3]
    before = final.read_bytes()
    hook = Recorder(stop_at=3)
    assert train_toy(*opts, hooks=[hook], resume=True)[1] == metrics
    assert final.read_bytes() == before
    assert hook.calls == [
        ("before_train", 3),
        ("after_evaluation", 3),
        ("after_train", 3),
        ("close", 3),
    ]
    train_toy(*opts, resume=True)  # without the hook, the run continues
    assert read_checkpoint(final).training["iteration"] == 9


def test_hooks_are_registered_by_name(train_toy, monkeypatch):
    monkeypatch.setattr(HOOKS, "_builders", dict(HOOKS._builders))
    built = []

    @HOOKS.register("StopAt")
    def build(cfg):
        built.append(Recorder(stop_at=cfg.SOLVER.LOG_PERIOD))
        return built[0]

    train_toy("SOLVER.HOOKS", ("StopAt",), "SOLVER.LOG_PERIOD", 2)
    assert built[0].calls[-1] == ("close", 2)
    with pytest.raises(ConfigError, match=r"SOLVER\.HOOKS: unknown hook 'StopAtt'.*'StopAt'"):
        train_toy("SOLVER.HOOKS", ("StopAtt",), "SOLVER.MAX_ITER", 1)


def test_hooks_are_closed_after_an_error(train_toy, caplog):
    """Started hooks are closed from the last one, and an error while closing hides no other."""

    class Fragile(Recorder):
        def close(self):
            closed.append(self)
            raise OSError("no connection")

    class Unstarted(Fragile):
        def before_train(self):
            raise ValueError("no account")

    closed, hooks = [], [Fragile(), Fragile(), Unstarted(), Fragile()]
    with pytest.raises(ValueError, match="no account"):
        train_toy(hooks=hooks)
    assert closed == [hooks[1], hooks[0]]
    assert caplog.text.count("cannot close the hook Fragile") == 2
    assert "OSError: no connection" in caplog.text
