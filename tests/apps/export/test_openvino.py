"""Compare parts run by OpenVINO with the original modules."""

import copy
import logging
import os
import pickle
import sys
import zipfile
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite import ConfigError, Predictor, build_model
from detlite.apps.export import openvino
from detlite.apps.export.exported_detector import prepare_export, write_exported
from detlite.apps.export.openvino import openvino_parts, to_openvino
from detlite.apps.export.parts import ExportablePart
from detlite.errors import CheckpointError
from detlite.modeling.backbone import vit
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.precision import native_formats

pytest.importorskip("openvino", reason="needs the extra openvino")
from tests.builders import run_python
from tests.modeling.family import family_config

Config = Callable[..., CfgNode]


@pytest.fixture(scope="module")
def config(tiny_config: Config) -> CfgNode:
    """Return the config of a Mask R-CNN that detects something everywhere."""
    return tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0, "INPUT.MIN_SIZE_TEST", 64)


@pytest.fixture(scope="module")
def model(config: CfgNode) -> DetectionModel:
    torch.manual_seed(0)
    return build_model(config).eval()


@pytest.fixture(scope="module")
def converted(model: DetectionModel) -> DetectionModel:
    return to_openvino(model)


@pytest.fixture(scope="module")
def quantized(config: CfgNode) -> tuple[DetectionModel, DetectionModel]:
    """Return a model whose 8-bit weights would overflow in 16 bits, and an int8 copy."""
    pytest.importorskip("nncf", reason="needs the extra openvino")
    torch.manual_seed(0)
    model = build_model(config).eval()
    for module in model.backbone.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.weight.data.abs_()
    model.categories = [{"id": 10 * k, "name": f"category {k}"} for k in (1, 2, 3)]
    return model, to_openvino(model, calibration_images())


def assert_same(left: DetectionModel, right: DetectionModel, images: list[Tensor]) -> None:
    proposals = [torch.tensor([[4.0, 5.0, 40.0, 50.0], [20.0, 8.0, 60.0, 44.0]])] * len(images)
    batches = [m.detect(images, proposals if m.takes_proposals else None) for m in (left, right)]
    for one, other in zip(*batches, strict=True):
        assert len(one.boxes) > 0
        torch.testing.assert_close(vars(one), vars(other), rtol=1e-3, atol=1e-3)


def calibration_images() -> list[Tensor]:
    return [torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8) for _ in range(3)]


BACKBONES = {
    "timm/test_convnext-FPN": (),
    "timm/tf_efficientnet_lite0-FPN": (),
    "ViT-T-SFP": ("MODEL.VIT.WINDOW", 3, "MODEL.VIT.GLOBAL_BLOCKS", 1),  # the first has windows
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKBONES)
def test_backbones(name, tiny_config, monkeypatch):
    """The last sizes are padded: they are no multiples of strides, windows or patches."""
    if name.startswith("timm"):
        pytest.importorskip("timm", reason="needs the extra timm")
    monkeypatch.setitem(vit.SIZES, "T", (32, 2, 2))
    every = openvino.exportable_parts
    monkeypatch.setattr(openvino, "exportable_parts", lambda model: every(model)[:1])
    cfg = tiny_config("MODEL.BACKBONE.CONV_BODY", name, *BACKBONES[name])
    model = build_model(cfg).eval()
    converted = to_openvino(model)
    for size in ((64, 96), (160, 64), (75, 130), (233, 131)):
        pixels = torch.rand(2, 3, *size)
        with torch.no_grad():
            pairs = zip(converted.backbone(pixels), model.backbone(pixels), strict=True)
        for actual, expected in pairs:
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


# The parts of these models, besides the backbone, differ from a Mask R-CNN's parts.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["c4", "cascade", "retinanet"])
def test_other_models(name, tiny_config, monkeypatch):
    every = openvino.exportable_parts
    monkeypatch.setattr(openvino, "exportable_parts", lambda model: every(model)[1:])
    cfg = family_config(name, tiny_config, "MODEL.RETINANET.NUM_CONVS", 1)
    model = build_model(cfg).eval()
    assert_same(model, to_openvino(model), [torch.rand(3, 64, 96), torch.rand(3, 80, 72)])


@pytest.mark.slow
def test_a_converted_model_and_its_copies(model, converted, monkeypatch):
    for sizes in ([(64, 64)], [(75, 140), (200, 30)]):
        images = [torch.rand(3, *size) for size in sizes]
        for again in (
            converted,
            pickle.loads(pickle.dumps(converted, 2)),
            copy.deepcopy(converted),
        ):
            assert_same(model, again, images)
    assert not openvino_parts(model)
    parts = ("backbone.dense", "rpn.head", "roi_heads.box.predictor", "roi_heads.mask.predictor")
    assert tuple(openvino_parts(converted)) == parts
    assert model.roi_heads.box.feature_extractor is not converted.roi_heads.box.feature_extractor
    first = converted.backbone(torch.ones(1, 3, 64, 96))
    assert all(level.is_contiguous(memory_format=torch.channels_last) for level in first)
    kept = [level.clone() for level in first]
    converted.backbone(torch.zeros(1, 3, 64, 96))  # has its own memory
    assert all(torch.equal(*pair) for pair in zip(first, kept, strict=True))
    monkeypatch.setattr(converted.roi_heads.box, "score_thresh", 1.0)
    [detections] = converted.detect([torch.rand(3, 64, 64)])
    assert len(detections.boxes) == 0
    assert detections.mask_probs.shape == (0, 28, 28)


def test_decompression_bomb(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.openvino", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("detlite.json", bytes(10_000_000))
    with pytest.raises(CheckpointError, match=r"damaged.*its parts have 10000000 bytes"):
        Predictor(tmp_path / "a.openvino")


@pytest.mark.slow
def test_int8_accuracy_and_file(config, quantized, tmp_path):
    model, int8 = quantized
    for name, part in openvino_parts(int8).items():
        assert "FakeQuantize" in {op.get_type_name() for op in part.graph.get_ops()}, name
    pixels = model.prepare(calibration_images()[:1])[0].pixels
    levels = int8.backbone(pixels)
    for one, other in zip(model.backbone(pixels), levels, strict=True):
        assert 0 < (one - other).norm() / one.norm() < 0.3
    cfg = prepare_export(config, copy.deepcopy(model))
    write_exported(tmp_path / "model.openvino", "openvino", cfg, int8)
    read = Predictor(tmp_path / "model.openvino")
    assert read.min_size == 64
    assert read.categories == model.categories
    assert read.model.normalizer.divisibility == 32
    torch.testing.assert_close(read.model.backbone(pixels), levels)


class Antialiased(torch.nn.Module):
    """Resizes as timm resizes position embeddings."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.interpolate(x, (8, 8), mode="bicubic", antialias=True)


@pytest.mark.slow
def test_unsupported_operation_is_named():
    """The root logger stays unchanged."""
    part = ExportablePart("backbone", Antialiased(), print)
    root = logging.getLogger()
    before = root.level, root.filters[:], root.handlers[:]
    problem = r"^OpenVINO does not support aten\._upsample\S+ in backbone"
    with pytest.raises(ConfigError, match=problem):
        openvino._convert(part, (torch.rand(2, 3, 16, 24),))
    assert (root.level, root.filters, root.handlers) == before


@pytest.mark.slow
def test_int8_leaves_the_first_convolution_and_group_norm_in_float32(quantized):
    """Quantizing the pixels would change dark images; a norm's input is float32 anyway."""
    for name, in_float in (("backbone.dense", 1), ("rpn.head", 0)):
        sources: dict[str, list[str]] = {}
        for one in openvino_parts(quantized[1])[name].graph.get_ops():
            for source in one.inputs()[:1]:
                kind = source.get_source_output().get_node().get_type_name()
                sources.setdefault(one.get_type_name(), []).append(kind)
        # A part transposes its channels-last inputs.
        assert sources["Convolution"].count("Transpose") == in_float, (name, sources)
        assert "FakeQuantize" not in sources.get("GroupNormalization", ())
        assert ("GroupNormalization" in sources) == (name == "backbone.dense")


_LEVELS = """
import sys
import torch
from detlite import Predictor
backbone = Predictor(sys.argv[1]).model.backbone
torch.save([level.clone() for level in backbone(torch.load(sys.argv[2]))], sys.argv[3])
"""


@pytest.mark.slow
def test_int8_results_do_not_depend_on_vnni(config, quantized, tmp_path):
    """Processors without VNNI add two products in 16 bits, where 8-bit weights may overflow."""
    if "int8" not in native_formats(torch.device("cpu")):
        pytest.skip("this processor has no int8 instructions to disable")
    model, int8 = quantized
    cfg = prepare_export(config, copy.deepcopy(model))
    write_exported(tmp_path / "int8.openvino", "openvino", cfg, int8)
    pixels = model.prepare(calibration_images()[:1])[0].pixels
    torch.save(pixels, tmp_path / "pixels.pt")
    files = [tmp_path / name for name in ("int8.openvino", "pixels.pt", "levels.pt")]
    run_python(_LEVELS, *files, env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, check=True)
    for one, other in zip(int8.backbone(pixels), torch.load(files[2]), strict=True):
        assert (one - other).norm() / one.norm() < 1e-3


def test_int8_needs_detections(model, monkeypatch):
    pytest.importorskip("nncf", reason="needs the extra openvino")
    monkeypatch.setattr(model.roi_heads.box, "score_thresh", 1.0)
    with pytest.raises(ConfigError, match=r"mask\.predictor was not called for any of the 1"):
        to_openvino(model, [torch.rand(3, 64, 96)])


# With AMX, each runtime installs a signal stack. Destroying two runtimes removed both.
_SIGNAL = """
import faulthandler, signal, subprocess
import torch
from openvino import Model, opset13
from torch.utils._pytree import tree_structure
from detlite.apps.export.openvino import OpenVINOPart

def part():
    x = opset13.parameter([2, 3])
    graph = Model([opset13.relu(x)], [x])
    return OpenVINOPart(graph, tree_structure(torch.zeros(1)))

faulthandler.enable()
first, second = part(), part()
first(torch.zeros(2, 3))
del first
del second
signal.signal(signal.SIGCHLD, lambda *_: print("handled"))
subprocess.run(["true"])
"""


@pytest.mark.slow
def test_signals_work_after_the_parts_are_destroyed(repo_root):
    process = run_python(_SIGNAL, cwd=repo_root)
    assert (process.returncode, process.stdout) == (0, "handled\n"), process.stderr


@pytest.mark.parametrize("package", ["openvino", "nncf", None])
def test_what_the_conversion_needs(package, model, monkeypatch):
    if package:
        monkeypatch.setitem(sys.modules, package, None)
    else:
        monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    needed = r"pip install 'detlite\[openvino\]'" if package else r"set MODEL\.DEVICE cpu"
    with pytest.raises(ConfigError, match=needed):
        to_openvino(model, [torch.rand(3, 64, 96)])
