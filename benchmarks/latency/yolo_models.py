"""Export ultralytics' YOLO with random weights to OpenVINO, and measure one of the exports.

    environments/ultralytics/bin/python -m benchmarks.latency.yolo_models write FOLDER MODEL SIZE...
    environments/ultralytics/bin/python -m benchmarks.latency.yolo_models serve FOLDER MODEL MODE

Two calls are measured, each from an array to boxes and masks: the library's `predict`, and the
compiled model with the library's functions for NMS and masks. They return the `DETECTIONS` objects
with the highest scores; the lowest of these scores is the threshold of each size.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import openvino
import torch
import yaml
from ultralytics import YOLO
from ultralytics.utils import ROOT, ops
from ultralytics.utils.nms import non_max_suppression

from .worker import Answer, serve, time_calls

DETECTIONS = 40
_IOU = 0.7  # the default of ultralytics
_IMAGES = 8


def write(folder: Path, name: str, sizes: list[int]) -> None:
    """Export a model with one class in float32 and int8 for each image size."""
    # For yolo11n-seg.yaml, ultralytics reads yolo11-seg.yaml and the scale "n" from the name.
    version, rest = name.removeprefix("yolo")[:2], name.removeprefix("yolo")[3:]
    config = folder / f"yolo{version}{rest}.yaml"
    shipped = Path(str(ROOT)) / "cfg" / "models" / version / config.name
    config.write_text(yaml.safe_dump({**yaml.safe_load(shipped.read_text()), "nc": 1}))
    for size in sizes:
        data = _write_data(folder / f"data{size}", size)
        for mode, options in (("float32", {}), ("int8", {"int8": True, "data": str(data)})):
            torch.manual_seed(0)
            model = YOLO(str(folder / f"{name}.yaml"), task="segment")
            exported = Path(model.export(format="openvino", imgsz=size, **options))
            exported.rename(export_folder(folder, name, mode, size))


def export_folder(folder: Path, name: str, mode: str, size: int) -> Path:
    """Return the folder of an exported model; ultralytics requires this suffix."""
    return folder / f"{name}_{size}_{mode}_openvino_model"


def square_image(size: int, seed: int = 0) -> np.ndarray:
    """Return an image of smooth noise, uint8 [size, size, 3]."""
    coarse = np.random.default_rng(seed).integers(0, 256, (size // 16, size // 16, 3), np.uint8)
    return cv2.resize(coarse, (size, size), interpolation=cv2.INTER_LINEAR)


def _write_data(folder: Path, size: int) -> Path:
    """Write a dataset for calibration: images of noise with one labeled object each."""
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for seed in range(_IMAGES):
        cv2.imwrite(str(folder / "images" / f"{seed}.png"), square_image(size, seed))
        (folder / "labels" / f"{seed}.txt").write_text("0 0.2 0.2 0.8 0.2 0.8 0.8 0.2 0.8")
    file = folder / "data.yaml"
    entries = {"path": str(folder.absolute()), "train": "images", "val": "images"}
    file.write_text(json.dumps({**entries, "names": {0: "object"}}))  # json is YAML
    return file


class ModelServer:
    """Measures the exports of a model in one mode on request, with calls for each image size."""

    def __init__(self, folder: Path, name: str, mode: str) -> None:
        self._path = lambda size: export_folder(folder, name, mode, size)
        self._calls: dict[int, tuple[dict[str, Callable[[], int]], float]] = {}

    def answer(self, request: Answer) -> Answer:
        """Measure calls as requested by `latency.run`."""
        size: int = request["size"]
        if size not in self._calls:
            self._calls[size] = _calls(self._path(size), size)
        calls, threshold = self._calls[size]
        call = calls[request["path"]]
        if not request["seconds"]:  # the first request
            return {"detections": call(), "threshold": threshold}
        limits = request["seconds"], request["max_calls"]
        return {"ms": time_calls(call, *limits, request["clock"])}


def _calls(path: Path, size: int) -> tuple[dict[str, Callable[[], int]], float]:
    """Return the calls by name, and their score threshold."""
    image, model = square_image(size), YOLO(str(path), task="segment")
    options = {"imgsz": size, "iou": _IOU, "max_det": DETECTIONS, "verbose": False}
    [candidates] = model.predict(image, conf=1e-9, **options)
    threshold = float(candidates.boxes.conf.min()) * (1 - 1e-6)

    def predict() -> int:
        [result] = model.predict(image, conf=threshold, **options)
        masks = result.masks.data.numpy()
        assert len(result.boxes.xyxy.numpy()) == len(masks)
        return len(masks)

    calls = {"predict": predict, "compiled": _compiled_call(path, image, threshold)}
    return calls, threshold


def _compiled_call(path: Path, image: np.ndarray, threshold: float) -> Callable[[], int]:
    """Return a call of the compiled model without the library's predictor."""
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": int(os.environ["OMP_NUM_THREADS"]),
    }
    xml = next(path.glob("*.xml"))
    compiled = openvino.Core().compile_model(str(xml), "CPU", settings)
    # A model without NMS returns one row (box, score, class, coefficients) per object.
    end2end = "end2end: true" in (path / "metadata.yaml").read_text().lower()

    def call() -> int:
        pixels = np.ascontiguousarray(image[None, :, :, ::-1].transpose(0, 3, 1, 2))
        outputs: list[Any] = list(compiled(pixels.astype(np.float32) / 255).values())
        rows, protos = (torch.from_numpy(output) for output in outputs)
        [rows] = non_max_suppression(
            rows, threshold, _IOU, max_det=DETECTIONS, nc=1, end2end=end2end
        )
        masks = ops.process_mask(protos[0], rows[:, 6:], rows[:, :4], image.shape[:2], True)
        return len(masks)

    return call


def main() -> None:
    """Run the command line."""
    action, folder, name, *arguments = sys.argv[1:]
    if action == "write":
        write(Path(folder), name, list(map(int, arguments)))
        return
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    serve(ModelServer(Path(folder), name, *arguments).answer)


if __name__ == "__main__":
    main()
