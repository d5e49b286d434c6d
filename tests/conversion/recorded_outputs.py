"""Recorded outputs of detectron2 and maskrcnn-benchmark, compared with converted models."""

import importlib.util
import json
import pickle
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

import detlite
from detlite.data.transforms.resize import resize_shortest
from detlite.structures.padding import RowPacking
from tests.conversion.detection_differences import (
    DetectionDifference,
    as_dict,
    compare,
    in_original_image,
)

GOLDEN = {
    "d2_mask_rcnn_R_50_FPN_3x": "detectron2",
    "d2_keypoint_rcnn_R_50_FPN_3x": "detectron2",
    "mrb_e2e_mask_rcnn_R_50_FPN_1x": "maskrcnn-benchmark",
    "mrb_e2e_faster_rcnn_R_50_C4_1x": "maskrcnn-benchmark",
}
_LOW_SCORES = ["MODEL.ROI_HEADS.SCORE_THRESH", 0.01, "MODEL.DEVICE", "cpu"]


class Golden:
    """A recorded model: its weights, images and outputs."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.source = GOLDEN[name]
        self.recipe = load_recipe(folder)
        self.manifest = json.loads((folder / f"{name}.json").read_text())
        self.arrays = np.load(folder / f"{name}.npz")

    def state(self) -> dict[str, np.ndarray]:
        """Return the weights with the names of their framework."""
        manifest = self.manifest
        state = self.recipe.build_state(manifest["entries"], manifest["gains"], manifest["values"])
        for name, checksum in manifest["weight_checksums"].items():
            assert self.recipe.checksum(state[name]) == checksum, name
        return state

    def save(self, folder: Path) -> Path:
        """Write the weights in the file format of their framework."""
        state = self.state()
        if self.source == "detectron2":
            path = folder / f"{self.name}.pkl"
            path.write_bytes(pickle.dumps({"model": state, "__author__": "test"}))
        else:
            path = folder / f"{self.name}.pth"
            tensors = {f"module.{name}": torch.from_numpy(v) for name, v in state.items()}
            torch.save({"model": tensors}, path)
        return path

    def predictor(self) -> detlite.Predictor:
        """Load a predictor from a file of the weights."""
        with tempfile.TemporaryDirectory() as folder:
            return detlite.load_checkpoint(self.save(Path(folder)), _LOW_SCORES)

    def outputs(self, case: str, index: int) -> dict[str, Any]:
        """Return the recorded detections in an image, with boxes and labels of detlite."""
        prefix = f"{case}/{index}/"
        boxes = torch.from_numpy(self.arrays[prefix + "boxes"].copy())
        labels = torch.from_numpy(self.arrays[prefix + "labels"].copy())
        if self.source == "detectron2":
            labels = labels + 1
        else:
            boxes[:, 2:] += 1  # to the far edge of the last pixel
        outputs: dict[str, Any] = {
            "boxes": boxes,
            "scores": torch.from_numpy(self.arrays[prefix + "scores"]),
            "labels": labels,
        }
        if prefix + "mask_probs:u16" in self.arrays:
            probs = self.arrays[prefix + "mask_probs:u16"].astype(np.float32) / 65535
            outputs["mask_probs"] = torch.from_numpy(probs).reshape(len(boxes), *probs.shape[-2:])
            counts = json.loads(bytes(self.arrays[prefix + "masks:rle_json"]).decode())
            size = self.manifest["cases"][case]["output_sizes"][index]
            outputs["rles"] = [{"size": size, "counts": c} for c in counts]
        if prefix + "keypoints" in self.arrays:
            # The third number is the score as a probability.
            outputs["keypoints"] = torch.from_numpy(self.arrays[prefix + "keypoints"])
            outputs["keypoints_scores"] = outputs["keypoints"][..., 2]
        return outputs

    def compare(self, predictor: detlite.Predictor, case: str) -> DetectionDifference:
        """Detect in all images of a case, and compare with the recorded outputs."""
        about = self.manifest["cases"][case]
        images = [
            torch.from_numpy(self.recipe.load_picture(key)[0].transpose(2, 0, 1).copy())
            for key in about["pictures"]
        ]
        sizes = [tuple(size) for size in about.get("input_sizes", about.get("image_sizes"))]
        model = predictor.model
        if case == "A":  # resize the original image
            images = [resize_shortest(images[0], 800, 1333, model.convention.resize)]
            assert tuple(images[0].shape[1:]) == sizes[0]
        detected = [as_dict(detections) for detections in model.detect(images)]
        if "keypoints" in detected[0]:
            _scores_as_probabilities(model, images, detected)
        total = DetectionDifference()
        for index, detections in enumerate(detected):
            keep = detections["scores"] > about["score_thresh"]
            kept = {name: value[keep] for name, value in detections.items()}
            size = tuple(about["output_sizes"][index])
            result = in_original_image(model, kept, sizes[index], size)
            total.merge(compare(result, self.outputs(case, index)))
        return total


@torch.no_grad()
def _scores_as_probabilities(
    model: Any, images: list[Tensor], detected: list[dict[str, Tensor]]
) -> None:
    """Replace keypoint scores by those of detectron2, the softmax over the heat map."""
    features = model.backbone(model.normalizer(images).pixels)
    for index, detections in enumerate(detected):
        boxes, labels = detections["boxes"][None], detections["labels"][None]
        own = [level[index : index + 1] for level in features]
        packing = RowPacking(labels > 0, static_shapes=False)
        maps = model.roi_heads.head_outputs(own, packing, boxes, labels)["keypoint"]
        total = maps.flatten(2).logsumexp(dim=2)
        detections["keypoints_scores"] = (detections["keypoints_scores"] - total).exp()


def load_recipe(folder: Path) -> ModuleType:
    """Import recipe.py, which makes the weights and images of the recorded outputs."""
    spec = importlib.util.spec_from_file_location("golden_recipe", folder / "recipe.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
