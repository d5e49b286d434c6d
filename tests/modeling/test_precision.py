import pytest
import torch

from detlite.inference.build import build_detector
from detlite.inference.options import build_options
from detlite.modeling import precision
from detlite.modeling.build import build_model
from detlite.modeling.precision import autocast, resolve_dtype

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def hardware(monkeypatch):
    """Return a function that sets whether processor and GPU support bfloat16."""

    def pretend(
        amx: bool = False, avx: bool = False, vnni: bool = False, half: bool = False,
        cuda: bool = False,
    ) -> None:  # fmt: skip
        tile = ["AMX"] * amx
        formats = {
            "float32": [],
            "bfloat16": tile + ["AVX512-BF16"] * avx,
            "float16": ["AMX-FP16"] * half,
            "int8": tile + ["AVX512-VNNI"] * vnni,
        }
        monkeypatch.setattr(precision, "processor_formats", lambda: formats)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: cuda)
        precision._warn_of_slow_format.cache_clear()

    yield pretend
    precision._warn_of_slow_format.cache_clear()


BOTH = {"amx": True, "avx": True}


# The hardware, the device, "auto", the native formats, and the end of their description.
@pytest.mark.parametrize(
    ("able", "device", "auto", "native", "text"),
    [
        ({}, CPU, "float32", ["float32"],
         "multiplies float32 natively; bfloat16 and float16 would be slower than float32"),
        ({"cuda": True}, CPU, "float32", ["float32"], "float16 would be slower than float32"),
        ({"avx": True}, CPU, "bfloat16", ["float32", "bfloat16"], "bfloat16 (AVX512-BF16) nat"),
        ({"vnni": True}, CPU, "float32", ["float32", "int8"], "int8 (AVX512-VNNI) natively; "),
        (BOTH | {"vnni": True}, CPU, "bfloat16", ["float32", "bfloat16", "int8"],
         "multiplies float32, bfloat16 (AMX, AVX512-BF16), int8 (AMX, AVX512-VNNI) natively; "
         "float16 would be slower than float32"),
        (BOTH, CUDA, "float32", ["float32", "float16"], "multiplies float32, float16 natively"),
        ({"cuda": True, "vnni": True}, CUDA, "bfloat16", ["float32", "bfloat16", "float16"],
         "multiplies float32, bfloat16, float16 natively"),
        (BOTH | {"cuda": True}, torch.device("mps"), "float32", ["float32"], "float32 natively"),
    ],
)  # fmt: skip
def test_formats_of_each_device(able, device, auto, native, text, hardware):
    hardware(**able)
    assert resolve_dtype("auto", device) == auto
    assert precision.native_formats(device) == native
    assert text in precision.describe_formats(device)


@pytest.mark.parametrize(
    ("dtype", "able", "expected"),
    [
        ("float32", True, torch.float32),
        ("auto", False, torch.float32),
        ("auto", True, torch.bfloat16),
        ("bfloat16", False, torch.bfloat16),
    ],
)
def test_autocast_uses_the_resolved_dtype(dtype, able, expected, hardware):
    hardware(amx=able)
    x = torch.ones(2, 2)
    with autocast(dtype, CPU):
        assert (x @ x).dtype == expected


@pytest.mark.parametrize(
    ("able", "dtype", "device", "warned"),
    [
        ({}, "bfloat16", CPU, True),
        (BOTH, "float16", CPU, True),
        ({"half": True}, "float16", CPU, False),
        ({"avx": True}, "bfloat16", CPU, False),
        ({}, "auto", CPU, False),
        ({}, "float16", CUDA, False),
    ],
)
def test_slow_formats_are_reported_once(able, dtype, device, warned, hardware, caplog):
    hardware(**able)
    for _ in range(3):
        resolve_dtype(dtype, device)
    assert caplog.text.count("slower than float32 on most processors") == warned
    assert caplog.text.count("Set DTYPE to auto or float32") == warned
    assert (f"DTYPE is {dtype}" in caplog.text) == warned


def test_processor_formats(monkeypatch):
    asked = ["_is_amx_tile_supported", "_is_avx512_bf16_supported", "_is_vnni_supported",
             "_is_amx_fp16_supported"]  # fmt: skip
    for name in asked:
        monkeypatch.setattr(torch.cpu, name, lambda: True, raising=False)
    monkeypatch.setattr(precision, "processor_name", lambda: "AMD EPYC 9R14")
    everything = precision.processor_formats()
    assert everything["bfloat16"] == ["AMX", "AVX512-BF16"]
    assert everything["int8"] == ["AMX", "AVX512-VNNI"]
    assert everything["float16"] == ["AMX-FP16"]
    # AVX512-BF16 of Intel's processors multiplies half as fast as float32.
    monkeypatch.setattr(precision, "processor_name", lambda: "Intel(R) Xeon(R) Processor")
    assert precision.processor_formats()["bfloat16"] == ["AMX"]
    for name in asked:
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    assert not any(precision.processor_formats().values())


@pytest.mark.parametrize(
    ("able", "expected"), [({}, torch.float32), ({"amx": True}, torch.bfloat16)]
)
def test_inference_does_not_choose_slow_bfloat16(able, expected, hardware, tiny_config, caplog):
    hardware(**able)
    cfg = tiny_config("DTYPE", "auto", "TEST.OPTIMIZE", True)
    model, dtype = build_detector(build_model(cfg).eval(), build_options(cfg))
    assert dtype == "float32"
    own = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    assert own == {torch.float32, expected}
    assert not caplog.text
