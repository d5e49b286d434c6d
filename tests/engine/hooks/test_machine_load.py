"""Warning if other programs slow down a training."""

from types import SimpleNamespace

import torch

from detlite.engine.hooks import machine_load
from detlite.engine.hooks.machine_load import MachineLoad


def test_warns_once_on_the_cpu(monkeypatch, caplog):
    monkeypatch.setattr(machine_load.OtherPrograms, "problem", lambda *_: "others are busy")
    for device, expected in (("cpu", ["others are busy"]), ("meta", [])):
        hook = MachineLoad()
        hook.trainer = SimpleNamespace(model=SimpleNamespace(device=torch.device(device)))
        hook.before_train()
        hook.after_log({})
        hook.after_log({})
        assert caplog.messages == expected
        caplog.clear()
