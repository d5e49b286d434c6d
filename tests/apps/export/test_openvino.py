"""OpenVINO's parts beside the modules that they are made of."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite import ConfigError, Predictor, build_model
from detlite.apps.export.exported_detector import exportable, write_exported
from detlite.apps.export.openvino import openvino_parts, to_openvino
from detlite.modeling.backbone import vit
from detlite.modeling.detector import Detector
from detlite.modeling.precision import native_formats

pytest.importorskip("openvino", reason="needs the extra openvino")
from tests.modeling.family import family_config

Config = Callable[..., CfgNode]


@pytest.fixture(scope="module")
def config(tiny_config: Config) -> CfgNode:
    """A Mask R-CNN that finds something everywhere."""
    return tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0, "INPUT.MIN_SIZE_TEST", 64)


@pytest.fixture(scope="module")
def model(config: CfgNode) -> Detector:
    torch.manual_seed(0)
    return build_model(config).eval()


@pytest.fixture(scope="module")
def converted(model: Detector) -> Detector:
    return to_openvino(model)


def assert_same(left: Detector, right: Detector, images: list[Tensor]) -> None:
    given = [torch.tensor([[4.0, 5.0, 40.0, 50.0], [20.0, 8.0, 60.0, 44.0]])] * len(images)
    batches = [m.detect(images, given if m.takes_proposals else None) for m in (left, right)]
    for one, other in zip(*batches, strict=True):
        assert len(one.boxes) > 0
        torch.testing.assert_close(vars(one), vars(other), rtol=1e-3, atol=1e-3)


# Those whose parts differ from a Mask R-CNN's.
@pytest.mark.parametrize("name", ["c4", "cascade", "retinanet"])
def test_other_detectors_find_the_same(name, tiny_config):
    model = build_model(family_config(name, tiny_config)).eval()
    assert_same(model, to_openvino(model), [torch.rand(3, 64, 96), torch.rand(3, 80, 72)])


@pytest.mark.parametrize("name", ["test_convnext", "tf_efficientnet_lite0"])
def test_bodies_of_timm_give_the_same_maps(name, tiny_config):
    pytest.importorskip("timm", reason="needs the extra timm")
    model = build_model(tiny_config("MODEL.BACKBONE.CONV_BODY", f"timm/{name}-FPN")).eval()
    converted = to_openvino(model)
    for size in [(64, 96), (160, 64), (75, 130)]:  # the last one is padded
        pixels = torch.rand(2, 3, *size)
        with torch.no_grad():
            pairs = zip(model.backbone(pixels), converted.backbone(pixels), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_a_transformer_of_any_size_gives_the_same_maps(tiny_config, monkeypatch):
    """In the last size neither the windows nor the patches come out even."""
    monkeypatch.setitem(vit.SIZES, "T", (32, 3, 2))
    cfg = tiny_config("MODEL.BACKBONE.CONV_BODY", "ViT-T-SFP", "MODEL.VIT.WINDOW", 3)
    model = build_model(cfg).eval()
    converted = to_openvino(model)
    for size in [(64, 96), (233, 131)]:
        pixels = torch.rand(2, 3, *size)
        with torch.no_grad():
            pairs = zip(model.backbone(pixels), converted.backbone(pixels), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("sizes", [[(64, 64)], [(75, 140), (200, 30)]])
def test_images_of_any_size(model, converted, sizes):
    assert_same(model, converted, [torch.rand(3, *size) for size in sizes])


def test_an_image_without_detections(converted, monkeypatch):
    monkeypatch.setattr(converted.roi_heads.box, "score_thresh", 1.0)
    [found] = converted.detect([torch.rand(3, 64, 64)])
    assert len(found.boxes) == 0
    assert found.mask_probs.shape == (0, 28, 28)


def test_results_outlive_the_next_call(converted):
    first = converted.backbone(torch.ones(1, 3, 64, 64))
    kept = [level.clone() for level in first]
    converted.backbone(torch.zeros(1, 3, 64, 64))
    assert all(torch.equal(*pair) for pair in zip(first, kept, strict=True))


def test_maps_are_channels_last(converted):
    levels = converted.backbone(torch.rand(1, 3, 64, 96))
    assert all(level.is_contiguous(memory_format=torch.channels_last) for level in levels)


def test_the_model_stays_as_it_is(model, converted):
    assert not openvino_parts(model)
    assert list(openvino_parts(converted)) == [
        "backbone.dense",
        "rpn.head",
        "roi_heads.box.predictor",
        "roi_heads.mask.predictor",
    ]
    assert model.roi_heads.box.feature_extractor is not converted.roi_heads.box.feature_extractor


def test_int8_is_close_and_survives_a_file(config, tmp_path):
    pytest.importorskip("nncf", reason="needs the extra openvino")
    model = build_model(config).eval()
    cfg = exportable(config, model)
    pictures = [torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8) for _ in range(3)]
    quantised = to_openvino(model, pictures)
    for name, part in openvino_parts(quantised).items():
        assert "FakeQuantize" in {op.get_type_name() for op in part.graph.get_ops()}, name
    pixels = model.prepare(pictures[:1])[0].pixels
    levels = quantised.backbone(pixels)
    for one, other in zip(model.backbone(pixels), levels, strict=True):
        assert 0 < (one - other).norm() / one.norm() < 0.3

    quantised.categories = [{"id": 10 * k, "name": f"kind {k}"} for k in (1, 2, 3)]
    write_exported(tmp_path / "model.openvino", "openvino", cfg, quantised)
    read = Predictor(tmp_path / "model.openvino")
    assert read.min_size == 64
    assert read.categories == quantised.categories
    assert read.model.normalizer.divisibility == 32
    torch.testing.assert_close(read.model.backbone(pixels), levels)


def test_an_operation_that_openvino_lacks_is_named(tiny_config):
    """timm's position embeddings are resized with antialiasing. The program logs on as before."""
    pytest.importorskip("timm", reason="timm is not installed")
    cfg = tiny_config("MODEL.BACKBONE.CONV_BODY", "timm/vit_tiny_patch16_224-SFP")
    root = logging.getLogger()
    before = root.level, root.filters[:], root.handlers[:]
    with pytest.raises(
        ConfigError, match=r"^OpenVINO has no form of aten\._upsample\S+ in backbone"
    ):
        to_openvino(build_model(cfg).eval())
    assert (root.level, root.filters, root.handlers) == before


def test_int8_leaves_the_first_convolution_in_float32(config):
    """Levels between those of the pixels would change a dark picture by much."""
    pytest.importorskip("nncf", reason="needs the extra openvino")
    model = build_model(config).eval()
    pictures = [torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8) for _ in range(3)]
    quantised = openvino_parts(to_openvino(model, pictures))
    for name, in_float in (("backbone.dense", 1), ("rpn.head", 0)):
        convolutions = [
            operation
            for operation in quantised[name].graph.get_ops()
            if operation.get_type_name() == "Convolution"
        ]
        givers = [op.input_value(0).get_node().get_type_name() for op in convolutions]
        # What a part is given is transposed first: its maps are channels-last.
        assert givers.count("Transpose") == in_float, (name, givers)


def test_int8_leaves_group_norm_in_float32(tiny_config):
    """It takes the sums of a convolution, which come in float32 anyway."""
    pytest.importorskip("nncf", reason="needs the extra openvino")
    cfg = tiny_config("MODEL.RESNETS.NORM", "GN", "MODEL.GROUP_NORM.NUM_GROUPS", 2)
    model = build_model(cfg).eval()
    pictures = [torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8) for _ in range(3)]
    graph = openvino_parts(to_openvino(model, pictures))["backbone.dense"].graph
    norms = [op for op in graph.get_ops() if op.get_type_name() == "GroupNormalization"]
    givers = {op.input_value(0).get_node().get_type_name() for op in norms}
    assert givers
    assert "FakeQuantize" not in givers


_LEVELS = """
import sys
import torch
from detlite import Predictor
backbone = Predictor(sys.argv[1]).model.backbone
torch.save([level.clone() for level in backbone(torch.load(sys.argv[2]))], sys.argv[3])
"""


def test_int8_gives_the_same_without_its_instructions(config, tmp_path):
    """Without VNNI two products are added in 16 bits, where large ones of 8 bits overflow."""
    pytest.importorskip("nncf", reason="needs the extra openvino")
    if "int8" not in native_formats(torch.device("cpu")):
        pytest.skip("this processor has no instructions for int8 to do without")
    model = build_model(config).eval()
    for module in model.backbone.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.weight.data.abs_()
    pictures = [torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8) for _ in range(3)]
    quantised = to_openvino(model, pictures)
    write_exported(tmp_path / "int8.openvino", "openvino", exportable(config, model), quantised)
    pixels = model.prepare(pictures[:1])[0].pixels
    torch.save(pixels, tmp_path / "pixels.pt")
    files = [str(tmp_path / name) for name in ("int8.openvino", "pixels.pt", "levels.pt")]
    subprocess.run(
        [sys.executable, "-c", _LEVELS, *files],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
        check=True,
    )
    for one, other in zip(quantised.backbone(pixels), torch.load(files[2]), strict=True):
        assert (one - other).norm() / one.norm() < 1e-3


def test_int8_needs_detections(model, monkeypatch):
    pytest.importorskip("nncf", reason="needs the extra openvino")
    monkeypatch.setattr(model.roi_heads.box, "score_thresh", 1.0)
    with pytest.raises(ConfigError, match=r"mask\.predictor was never used on the 1 pictures"):
        to_openvino(model, [torch.rand(3, 64, 96)])


# With AMX, a runtime lends the thread a stack for signals; let go in this order, two took both.
_SIGNAL = """
import faulthandler, signal, subprocess
import torch
from openvino import Model, opset13
from torch.utils import _pytree as pytree
from detlite.apps.export.openvino import OpenVINOPart

def part():
    x = opset13.parameter([2, 3])
    graph = Model([opset13.relu(x)], [x])
    return OpenVINOPart(graph, pytree.treespec_dumps(pytree.tree_flatten(torch.zeros(1))[1]))

faulthandler.enable()
first, second = part(), part()
first(torch.zeros(2, 3))
del first
del second
signal.signal(signal.SIGCHLD, lambda *_: print("handled"))
subprocess.run(["true"])
"""


def test_signals_are_handled_after_the_last_part_is_gone(repo_root):
    command = [sys.executable, "-c", _SIGNAL]
    done = subprocess.run(command, cwd=repo_root, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


@pytest.mark.parametrize("package", ["openvino", "nncf"])
def test_without_the_packages(package, model, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"pip install 'detlite\[openvino\]'"):
        to_openvino(model, [torch.rand(3, 64, 96)])


def test_another_device(model, monkeypatch):
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    with pytest.raises(ConfigError, match=r"set MODEL\.DEVICE cpu"):
        to_openvino(model)
