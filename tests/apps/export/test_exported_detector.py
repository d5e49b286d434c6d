"""Test that exported files can be loaded and detect the same objects as the model."""

import copy
import io
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from yacs.config import CfgNode

from detlite import ConfigError, Predictor, build_model
from detlite.apps.batch_predict.predict_images import load_predictor
from detlite.apps.export import exported_detector as exported
from detlite.apps.export.export_run import compare_detectors
from detlite.apps.export.exported_detector import prepare_export, read_exported, write_exported
from detlite.apps.export.exported_program import Inference, ProgramDetector, export_program
from detlite.apps.export.openvino import to_openvino
from detlite.errors import CheckpointError
from detlite.inference.options import InferenceOptions, View
from detlite.modeling.detection_model import DetectionModel
from tests.modeling.family import family_config

Config = Callable[..., CfgNode]
# Operators of opset 18 that TensorRT 9 and 10 lack (onnx-tensorrt, docs/operators.md).
NOT_IN_TENSORRT = {
    "Bernoulli", "BitShift", "BlackmanWindow", "Compress", "ConcatFromSequence", "ConvInteger",
    "DFT", "Det", "DynamicQuantizeLinear", "HammingWindow", "HannWindow", "MatMulInteger",
    "MaxRoiPool", "MaxUnpool", "MelWeightMatrix", "Multinomial", "Optional", "OptionalGetElement",
    "OptionalHasElement", "QLinearConv", "QLinearMatMul", "STFT", "SequenceAt",
    "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
    "SequenceMap", "SplitToSequence", "StringNormalizer", "TfIdfVectorizer", "Unique",
}  # fmt: skip


def build(cfg: CfgNode) -> tuple[CfgNode, DetectionModel]:
    torch.manual_seed(0)
    model = build_model(cfg).eval()
    model.categories = [{"id": 10 * k, "name": f"category {k}"} for k in (1, 2, 3)]
    return prepare_export(cfg, model), model


def assert_agree(model: DetectionModel, read: DetectionModel) -> None:
    """Compare detections on images smaller and larger than the traced ones, and in a batch."""
    images = [torch.rand(3, *size) for size in ((64, 96), (250, 380), (384, 120))]
    proposals = [torch.tensor([[4.0, 5.0, 40.0, 50.0], [20.0, 8.0, 60.0, 44.0]])] * 3
    # Programs pad small images to 128. Pad the same for the model, because padding changes norms.
    model.normalizer.divisibility = 128
    difference = compare_detectors(
        model, read, images, proposals if model.takes_proposals else None
    )
    assert difference.objects > 10
    assert difference.within(boxes=0.01, scores=1e-4, masks=1e-3), difference
    if not model.takes_proposals:
        assert [len(detections.boxes) for detections in read.detect(images)] == [
            len(read.detect([image])[0].boxes) for image in images
        ]


@pytest.fixture(scope="module", params=["pt2", "onnx", "openvino"])
def written(request, tiny_config, tmp_path_factory) -> tuple[DetectionModel, Path]:
    """Return a model with two extra outputs, and its exported file."""
    package = {"pt2": "torch", "onnx": "onnxscript", "openvino": "openvino"}[request.param]
    pytest.importorskip(package, reason="needs an extra")
    cfg, model = build(
        tiny_config(
            "MODEL.ROI_HEADS.SCORE_THRESH", 0.0, "INPUT.MIN_SIZE_TEST", 96,
            "TEST.NMS.CLASS_AGNOSTIC", True, "TEST.EXTRA_OUTPUTS", ("class_scores", "features"),
        )
    )  # fmt: skip
    file = tmp_path_factory.mktemp("exported") / f"model.{request.param}"
    target = to_openvino(model) if request.param == "openvino" else model
    write_exported(file, request.param, cfg, target)
    assert list(file.parent.iterdir()) == [file]
    return model, file


@pytest.mark.slow
def test_file_detects_what_the_model_detects(written):
    model, file = written
    predictor = Predictor(file, trust=True)
    assert (predictor.min_size, predictor.max_size) == (96, 1333)
    assert Predictor(file, min_size=64, trust=True).min_size == 64
    prediction = predictor(np.zeros((100, 150, 3), np.uint8))
    assert prediction["masks"].shape == (len(prediction["boxes"]), 100, 150)
    assert set(prediction["names"]) <= {"category 1", "category 2", "category 3"}
    for read in (predictor.model, pickle.loads(pickle.dumps(predictor, 2)).model):
        read.normalizer.divisibility = 128  # as `assert_agree` sets it for the model
        assert_agree(model, read)
    [detections] = read.detect([torch.rand(3, 96, 128)])
    assert detections.extra_fields["class_scores"].shape[1] == 3
    assert detections.extra_fields["features"].shape[1] == 32
    if file.suffix == ".onnx":
        assert_portable(file)


@pytest.mark.slow
@pytest.mark.parametrize("written", ["pt2"], indirect=True)
def test_tiling_of_an_exported_model(written):
    """The caller or the config in the file sets the tiling."""
    model, file = written
    opts = ["TEST.TILE", 100]
    predictor = Predictor.from_checkpoint(file, opts, score_thresh=0.0, trust=True)
    assert predictor.detector.side == 100
    image = np.random.default_rng(0).integers(0, 256, (150, 150, 3), dtype=np.uint8)
    prediction = predictor(image)
    model.normalizer.divisibility = 128  # the program pads the views of 96 x 96 to it
    options = InferenceOptions(View(96, 1333), tile=100)
    expected = Predictor(model, options=options)(image)
    assert len(prediction["boxes"]) == len(expected["boxes"]) > 20
    torch.testing.assert_close(prediction["boxes"], expected["boxes"], atol=0.01, rtol=0)


def test_file_of_a_model_with_five_channels(tiny_config, tmp_path, monkeypatch):
    cfg, model = build(tiny_config("INPUT.PIXEL_MEAN", [0.5] * 5, "INPUT.PIXEL_STD", [0.2] * 5))
    monkeypatch.setattr(exported, "_write_pt2", lambda path, text, _: path.write_text(text))
    run = torch.no_grad()(Inference(model))
    monkeypatch.setattr(exported, "_pt2_run", lambda path: (path.read_text(), run))
    write_exported(tmp_path / "model.pt2", "pt2", cfg, model)
    predictor = Predictor(tmp_path / "model.pt2", score_thresh=0.05, trust=True)
    assert predictor.model.channels == 5
    assert len(predictor(np.zeros((100, 150, 5), np.uint8))["boxes"])


def assert_portable(file: Path) -> None:
    """Check that a graph has dynamic axes and only standard operators that TensorRT has too."""
    import onnx

    graph = onnx.load(file)
    assert [opset.domain for opset in graph.opset_import] == [""]
    assert not graph.functions
    operators = {node.op_type for node in graph.graph.node}
    assert {"NonMaxSuppression", "RoiAlign"} <= operators
    assert not operators & NOT_IN_TENSORRT
    shapes = [value.type.tensor_type.shape.dim for value in graph.graph.input]
    axes = [[axis.dim_value for axis in shape] for shape in shapes]
    assert axes == [[0, 3, 0, 0], [0, 2]]  # 0: any length


# The graphs of these models differ from a Mask R-CNN's graph.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast", "passes", "retinanet"])
def test_programs_of_other_models(name, tiny_config):
    model = build_model(family_config(name, tiny_config, "MODEL.RETINANET.NUM_CONVS", 1)).eval()
    program = export_program(model).module()
    boxes = [torch.tensor([[4.0, 5.0, 40.0, 50.0]])] if model.takes_proposals else None
    images, proposals = model.prepare([torch.rand(3, 288, 352)], boxes)
    with torch.no_grad():
        run = ProgramDetector(model, lambda *inputs: program(*inputs))
        for count in (1, 3):
            batch = images[[0] * count]
            own = None if proposals is None else proposals[[0] * count]
            actual, expected = (m.predict(batch, own).per_image() for m in (run, model))
            assert len(actual) == count
            for one, other in zip(actual, expected, strict=True):
                assert len(one.boxes) == len(other.boxes) > 0
                torch.testing.assert_close(one.boxes, other.boxes, rtol=1e-4, atol=1e-3)


def read_file(path: Path) -> tuple[str, Any]:
    return "", path.read_bytes


def test_copies_of_a_program_read_its_file_again(tiny_config, tmp_path):
    _, model = build(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.2))
    file = tmp_path / "model.onnx"
    file.write_bytes(b"content")
    program = ProgramDetector(model, print, (read_file, file))
    program.categories = [{"id": 5, "name": "changed"}]
    for again in (pickle.loads(pickle.dumps(program, 2)), copy.deepcopy(program)):
        assert again.run() == b"content"
        assert again.categories == program.categories
    assert Predictor(program, score_thresh=0.2).score_thresh == 0.2
    with pytest.raises(ConfigError, match=r"a score threshold of 0\.2.* instead of 0\.1"):
        Predictor(program, score_thresh=0.1)
    written = pickle.dumps(program)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"model\.onnx: this file .* moved or removed"):
        pickle.loads(written)
    with pytest.raises(TypeError, match="not read from a file"):
        pickle.dumps(ProgramDetector(model, print))


def fill_disk(path: Path, *_: Any) -> None:
    path.write_bytes(b"partial")
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("name", "file_format", "opts", "message"),
    [
        ("model.onnx", "pt2", (), r"the format pt2 must end in \.pt2"),
        ("none/model.pt2", "pt2", (), "the folder .*none does not exist"),
        ("model.onnx", "onnx", (), r"pip install 'detlite\[onnx\]'"),
        ("model.pt2", "pt2", ("TEST.BBOX_AUG.ENABLED", True),
         r"BBOX_AUG\.ENABLED must be False.*the format openvino"),
        ("model.pt2", "pt2", (), r"model.pt2: cannot be written .No space"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_written(
    name, file_format, opts, message, tiny_config, tmp_path, monkeypatch
):
    """The old file is kept."""
    cfg, model = build(tiny_config(*opts))
    (tmp_path / "model.pt2").write_bytes(b"old")
    monkeypatch.setattr(exported, "_write_pt2", fill_disk)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises((ConfigError, CheckpointError), match=message):
        write_exported(tmp_path / name, file_format, cfg, model)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def archive_with_a_long_name() -> bytes:
    """Return a zip archive whose reader repeats a long name in its message."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("detlite.json", 9000 * "a")
    data = bytearray(buffer.getvalue())
    struct.pack_into("<H", data, 26, 5000)  # the length of the name
    return bytes(data)


DAMAGED = "damaged, or not written by"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pt2", b"damaged", DAMAGED),
        ("a.onnx", b"damaged", DAMAGED),
        ("a.openvino", b"damaged", DAMAGED),
        ("a.openvino", archive_with_a_long_name(), DAMAGED),
        ("a.onnx", None, "there is no such file"),
        ("a.pth", b"", "is empty"),
    ],
)
def test_files_that_cannot_be_read(name, content, message, tmp_path):
    for suffix, package in ((".onnx", "onnxruntime"), (".openvino", "openvino")):
        if name.endswith(suffix):
            pytest.importorskip(package)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name}: {message}") as error:
        Predictor(tmp_path / name, trust=True)
    assert len(str(error.value)) < 600


def test_code_in_a_pt2_file_runs_only_on_trust(tmp_path, monkeypatch):
    (tmp_path / "model.pt2").write_bytes(b"not read")
    monkeypatch.setattr(torch.export, "load", pytest.fail)
    for read in (read_exported, Predictor, lambda file: load_predictor(str(file), 0.5)):
        with pytest.raises(CheckpointError, match=r"model\.pt2: refused.*--trust.*trust=True"):
            read(tmp_path / "model.pt2")
