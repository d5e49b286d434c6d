"""Recorded outputs of detectron2 and maskrcnn-benchmark, and ours for the same weights."""

from __future__ import annotations

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
from detlite.ops import paste_masks
from detlite.structures import boxes as box_ops
from detlite.structures.keypoints import rescale_keypoints
from detlite.structures.masks.pasting import paste_boxes
from detlite.structures.padding import Rows
from tests.conversion.detection_differences import Difference, as_dict, compare

GOLDEN = {
    "d2_mask_rcnn_R_50_FPN_3x": "detectron2",
    "d2_keypoint_rcnn_R_50_FPN_3x": "detectron2",
    "mrb_e2e_mask_rcnn_R_50_FPN_1x": "maskrcnn-benchmark",
    "mrb_e2e_faster_rcnn_R_50_C4_1x": "maskrcnn-benchmark",
}
_LOW_SCORES = ["MODEL.ROI_HEADS.SCORE_THRESH", 0.01, "MODEL.DEVICE", "cpu"]


class Golden:
    """One recorded model: its weights, pictures and outputs."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.source = GOLDEN[name]
        self.recipe = load_recipe(folder)
        self.manifest = json.loads((folder / f"{name}.json").read_text())
        self.arrays = np.load(folder / f"{name}.npz")

    def state(self) -> dict[str, np.ndarray]:
        """The weights by their framework's names."""
        manifest = self.manifest
        state = self.recipe.build_state(manifest["entries"], manifest["gains"], manifest["values"])
        for name, checksum in manifest["weight_checksums"].items():
            assert self.recipe.checksum(state[name]) == checksum, name
        return state

    def save(self, folder: Path) -> Path:
        """The weights in a file as their framework publishes them."""
        state = self.state()
        if self.source == "detectron2":
            path = folder / f"{self.name}.pkl"
            with path.open("wb") as stream:
                pickle.dump({"model": state, "__author__": "test"}, stream)
        else:
            path = folder / f"{self.name}.pth"
            torch.save(
                {"model": {f"module.{k}": torch.from_numpy(v) for k, v in state.items()}}, path
            )
        return path

    def predictor(self) -> detlite.Predictor:
        """A predictor straight from that file."""
        with tempfile.TemporaryDirectory() as folder:
            return detlite.load_checkpoint(self.save(Path(folder)), _LOW_SCORES)

    def outputs(self, case: str, index: int) -> dict[str, Any]:
        """What was recorded for a picture, in our conventions."""
        prefix = f"{case}/{index}/"
        boxes = torch.from_numpy(self.arrays[prefix + "boxes"].copy())
        labels = torch.from_numpy(self.arrays[prefix + "labels"].copy())
        if self.source == "detectron2":
            labels = labels + 1
        else:
            boxes[:, 2:] += 1  # the last pixel's far edge
        found: dict[str, Any] = {
            "boxes": boxes,
            "scores": torch.from_numpy(self.arrays[prefix + "scores"]),
            "labels": labels,
        }
        if prefix + "mask_probs:u16" in self.arrays:
            probs = self.arrays[prefix + "mask_probs:u16"].astype(np.float32) / 65535
            found["mask_probs"] = torch.from_numpy(probs).reshape(len(boxes), *probs.shape[-2:])
            counts = json.loads(bytes(self.arrays[prefix + "masks:rle_json"]).decode())
            size = self.manifest["cases"][case]["output_sizes"][index]
            found["rles"] = [{"size": size, "counts": c} for c in counts]
        if prefix + "keypoints" in self.arrays:
            # the third number is the score, as a probability
            found["keypoints"] = torch.from_numpy(self.arrays[prefix + "keypoints"])
            found["keypoints_scores"] = found["keypoints"][..., 2]
        return found

    def compare(self, predictor: detlite.Predictor, case: str) -> Difference:
        """Runs a case and compares every picture of it."""
        about = self.manifest["cases"][case]
        images = [
            torch.from_numpy(self.recipe.load_picture(key)[0].transpose(2, 0, 1).copy())
            for key in about["pictures"]
        ]
        sizes = [tuple(size) for size in about.get("input_sizes", about.get("image_sizes"))]
        if case == "A":  # through our own resize
            resize = predictor.model.convention.resize
            resized = resize_shortest(images[0], 800, 1333, resize)
            assert tuple(resized.shape[1:]) == sizes[0]
            images = [resized]
        total = Difference()
        model = predictor.model
        every = [as_dict(found) for found in model.detect(images)]
        if "keypoints" in every[0]:
            _scores_as_probabilities(model, images, every)
        for index, detections in enumerate(every):
            output_size = tuple(about["output_sizes"][index])
            keep = detections["scores"] > about["score_thresh"]
            ours: dict[str, Any] = {name: value[keep] for name, value in detections.items()}
            ours["boxes"] = box_ops.rescale(
                ours["boxes"], sizes[index], output_size, model.convention
            )
            if "mask_probs" in ours:
                ours["rles"] = paste_masks(
                    ours["mask_probs"],
                    paste_boxes(ours["boxes"], ours["mask_probs"].shape[-1], model.convention),
                    output_size,
                    model.mask_threshold,
                )
            if "keypoints" in ours:
                ours["keypoints"] = rescale_keypoints(ours["keypoints"], sizes[index], output_size)
            total.merge(compare(ours, self.outputs(case, index)))
        return total


@torch.no_grad()
def _scores_as_probabilities(
    model: Any, images: list[Tensor], detections: list[dict[str, Tensor]]
) -> None:
    """detectron2's scores of keypoints: the softmax of a map, at its enlarged maximum."""
    features = model.backbone(model.normalizer(images).pixels)
    for index, found in enumerate(detections):
        boxes, labels = found["boxes"][None], found["labels"][None]
        own = [level[index : index + 1] for level in features]
        maps = model.roi_heads.maps(own, Rows(labels > 0), boxes, labels)["keypoint_logits"]
        total = maps.flatten(2).logsumexp(dim=2)
        found["keypoints_scores"] = (found["keypoints_scores"] - total).exp()


def load_recipe(folder: Path) -> ModuleType:
    """The module recipe.py of the recorded outputs."""
    spec = importlib.util.spec_from_file_location("golden_recipe", folder / "recipe.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
