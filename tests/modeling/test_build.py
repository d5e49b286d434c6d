import pytest
import torch

from detlite.config import ConfigError
from detlite.modeling.build import build_model, torch_device


def test_seed_determines_the_weights(tiny_config):
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(build_model(tiny_config()).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


ABSENT = [name for name in ("mps", "xpu") if not torch.get_device_module(name).is_available()]


@pytest.mark.parametrize("name", ["nonsense", "cuda:9999", "privateuseone", *ABSENT])
def test_unavailable_device(tiny_config, name):
    with pytest.raises(ConfigError, match=r"MODEL\.DEVICE"):
        build_model(tiny_config("MODEL.DEVICE", name))


def test_automatic_device():
    assert torch_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_unknown_architecture(tiny_config):
    with pytest.raises(
        ConfigError, match=r"MODEL\.META_ARCHITECTURE: unknown detector 'RetinalNet'"
    ):
        build_model(tiny_config("MODEL.META_ARCHITECTURE", "RetinalNet"))
