"""DTYPE auto follows the hardware; the other values mean themselves."""

from __future__ import annotations

import pytest
import torch

from detlite.config import load_config
from detlite.engine import precision
from detlite.engine.precision import autocast, resolve_dtype
from detlite.modeling.build import torch_device

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def hardware(monkeypatch):
    """Pretends that the processor and the GPU can or cannot do bfloat16."""

    def pretend(amx: bool = False, avx: bool = False, cuda: bool = False) -> None:
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: cuda)

    return pretend


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("device", [CPU, CUDA])
def test_stated_precision_is_taken(dtype, device, hardware):
    hardware()
    assert resolve_dtype(dtype, device) == dtype


@pytest.mark.parametrize(
    ("able", "device", "wanted"),
    [
        ({}, CPU, "float32"),
        ({"amx": True}, CPU, "bfloat16"),
        ({"avx": True}, CPU, "bfloat16"),
        ({"cuda": True}, CPU, "float32"),
        ({}, CUDA, "float32"),
        ({"cuda": True}, CUDA, "bfloat16"),
        ({"amx": True, "avx": True}, CUDA, "float32"),
        ({"amx": True, "avx": True, "cuda": True}, torch.device("meta"), "float32"),
    ],
)
def test_auto_follows_the_device(able, device, wanted, hardware):
    hardware(**able)
    assert resolve_dtype("auto", device) == wanted


@pytest.mark.parametrize(
    ("dtype", "able", "wanted"),
    [
        ("float32", True, torch.float32),
        ("auto", False, torch.float32),
        ("auto", True, torch.bfloat16),
        ("bfloat16", False, torch.bfloat16),
    ],
)
def test_arithmetic_is_what_was_resolved(dtype, able, wanted, hardware):
    hardware(amx=able)
    x = torch.ones(2, 2)
    with autocast(dtype, CPU):
        assert (x @ x).dtype == wanted


@pytest.mark.parametrize(("able", "wanted"), [({}, torch.float32), ({"avx": True}, torch.bfloat16)])
def test_a_config_with_auto_is_float32_where_the_processor_has_no_bfloat16(able, wanted, hardware):
    hardware(**able)
    cfg = load_config(None, ["DTYPE", "auto", "MODEL.DEVICE", "cpu"])
    x = torch.ones(2, 2)
    with autocast(cfg.DTYPE, torch_device(cfg.MODEL.DEVICE)):
        assert (x @ x).dtype == wanted


def test_this_machine_can_be_asked():
    assert resolve_dtype("auto", CPU) in ("float32", "bfloat16")


@pytest.mark.parametrize(
    ("able", "dtype", "device", "warnings"),
    [
        ({}, "bfloat16", CPU, 1),
        ({}, "auto", CPU, 0),
        ({}, "float32", CPU, 0),
        ({"avx": True}, "bfloat16", CPU, 0),
        ({}, "bfloat16", CUDA, 0),
    ],
)
def test_emulation_is_warned_of_once(able, dtype, device, warnings, hardware, caplog):
    hardware(**able)
    precision._warn_of_emulation.cache_clear()
    for _ in range(3):
        resolve_dtype(dtype, device)
    assert caplog.text.count("emulates") == warnings
    assert caplog.text.count("set DTYPE auto, or float32") == warnings


@pytest.mark.parametrize(
    ("able", "vnni", "device", "wanted"),
    [
        ({}, False, CPU, ["float32"]),
        ({}, True, CPU, ["float32", "int8"]),
        ({"amx": True}, True, CPU, ["float32", "bfloat16", "int8"]),
        ({"cuda": True}, True, CUDA, ["float32", "bfloat16", "float16"]),
        ({"amx": True}, True, CUDA, ["float32", "float16"]),
    ],
)
def test_native_formats(able, vnni, device, wanted, hardware, monkeypatch):
    hardware(**able)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: vnni)
    assert precision.native_formats(device) == wanted
