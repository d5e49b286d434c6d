"""Converted weights against what their own framework makes of them.

`python tests/conversion/fidelity.py > docs/model_zoo.md` compares everything and writes the table.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from pycocotools import mask as rle_codec
from torch import Tensor
from torchvision.models.detection import FasterRCNN, KeypointRCNN, MaskRCNN
from torchvision.models.detection._utils import overwrite_eps
from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
from torchvision.models.resnet import resnet50
from torchvision.ops import FrozenBatchNorm2d

import detlite
from detlite.conversion import convert, to_torchvision

GOLDEN = {
    "d2_mask_rcnn_R_50_FPN_3x": "detectron2",
    "d2_keypoint_rcnn_R_50_FPN_3x": "detectron2",
    "mrb_e2e_mask_rcnn_R_50_FPN_1x": "maskrcnn-benchmark",
    "mrb_e2e_faster_rcnn_R_50_C4_1x": "maskrcnn-benchmark",
}
_LOW_SCORES = ["MODEL.ROI_HEADS.SCORE_THRESH", 0.01, "MODEL.DEVICE", "cpu"]


@dataclass
class Difference:
    """The largest differences between detections matched one to one."""

    count: int = 0
    unmatched: int = 0
    box: float = 0.0  # pixels
    score: float = 0.0
    mask: float = 0.0  # probability
    pixels: float = 0.0  # of a picture's pasted masks, as a fraction of their area
    keypoint: float = 0.0  # pixels

    def merge(self, other: Difference) -> None:
        """Takes the larger of each."""
        self.count += other.count
        self.unmatched += other.unmatched
        for name in ("box", "score", "mask", "pixels", "keypoint"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> Difference:
    """Matches each of their detections to the nearest of ours with its label.

    Both hold `boxes` [N, 4], `scores`, `labels`, and perhaps `mask_probs` [N, M, M] or [N, H, W],
    `rles` and `keypoints` [N, P, 3].
    """
    result = Difference(count=len(theirs["boxes"]))
    distance = (ours["boxes"][None] - theirs["boxes"][:, None]).abs().amax(2)
    distance = distance + (ours["scores"][None] - theirs["scores"][:, None]).abs()
    distance[theirs["labels"][:, None] != ours["labels"][None]] = float("inf")
    pairs: list[tuple[int, int]] = []
    for flat in distance.flatten().argsort().tolist():
        their, our = divmod(flat, distance.shape[1])
        if distance[their, our] > 1:
            break
        if all(their != t and our != o for t, o in pairs):
            pairs.append((their, our))
    result.unmatched = len(theirs["boxes"]) + len(ours["boxes"]) - 2 * len(pairs)
    if not pairs:
        return result
    their, our = (torch.tensor(index) for index in zip(*pairs, strict=True))

    def largest(name: str) -> float:
        return (ours[name][our] - theirs[name][their]).abs().max().item()

    result.box, result.score = largest("boxes"), largest("scores")
    if "mask_probs" in theirs:
        result.mask = largest("mask_probs")
    if "keypoints" in theirs:  # the third number means something else in each framework
        points = ours["keypoints"][our] - theirs["keypoints"][their]
        result.keypoint = points[..., :2].abs().max().item()
    if "rles" in theirs:
        differing, area = 0, 0
        for t, o in pairs:
            both = [theirs["rles"][t], ours["rles"][o]]
            common = int(rle_codec.area(rle_codec.merge(both, intersect=True)))
            differing += int(rle_codec.area(rle_codec.merge(both))) - common
            area += int(rle_codec.area(both[0]))
        result.pixels = differing / max(area, 1)
    return result


# ---- recorded outputs of detectron2 and maskrcnn-benchmark


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
            found["keypoints"] = torch.from_numpy(self.arrays[prefix + "keypoints"])
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
            resized = detlite.predictor.resize_shortest(images[0], 800, 1333, predictor.resize)
            assert tuple(resized.shape[1:]) == sizes[0]
            images = [resized]
        total = Difference()
        model = predictor.model
        for index, detections in enumerate(model.detect(images)):
            output_size = tuple(about["output_sizes"][index])
            keep = detections["scores"] > about["score_thresh"]
            ours: dict[str, Any] = {name: value[keep] for name, value in detections.items()}
            ours["boxes"] = model.output.boxes(ours["boxes"], sizes[index], output_size)
            if "mask_probs" in ours:
                ours["rles"] = model.output.masks(ours["mask_probs"], ours["boxes"], output_size)
            if "keypoints" in ours:
                ours["keypoints"] = model.output.keypoints(
                    ours["keypoints"], sizes[index], output_size
                )
            total.merge(compare(ours, self.outputs(case, index)))
        return total


def load_recipe(folder: Path) -> ModuleType:
    """The module recipe.py of the recorded outputs."""
    spec = importlib.util.spec_from_file_location("golden_recipe", folder / "recipe.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- torchvision, live


def torchvision_model(kind: str, state: dict[str, Tensor], **options: Any) -> torch.nn.Module:
    """torchvision's detector as it is built for its published weights, with `state`.

    Args:
        kind: "faster", "mask" or "keypoint".
        state: its state dict, which must fit strictly.
        options: keywords of torchvision's constructor.
    """
    body = resnet50(weights=None, norm_layer=FrozenBatchNorm2d)
    backbone = _resnet_fpn_extractor(body, trainable_layers=3)
    build = {"faster": FasterRCNN, "mask": MaskRCNN, "keypoint": KeypointRCNN}[kind]
    classes = len(state["roi_heads.box_predictor.cls_score.weight"])
    model = build(backbone, num_classes=classes, **options)
    model.load_state_dict(state)
    overwrite_eps(model, 0.0)
    return model.eval()


def torchvision_state(golden: Golden, kind: str) -> dict[str, Tensor]:
    """A recorded model's weights by torchvision's names, for torchvision's pixels.

    Its input is RGB with a standard deviation of one, not BGR with one of 57.
    """
    state = convert({"model": golden.state()}, golden.source).model
    state["backbone.body.stem.conv1.weight"] = (
        state["backbone.body.stem.conv1.weight"].flip(1) * 57.6
    )
    if kind == "faster":
        state = {name: value for name, value in state.items() if ".mask." not in name}
    return to_torchvision(state)


def compare_torchvision(
    reference: torch.nn.Module, predictor: detlite.Predictor, picture: np.ndarray
) -> Difference:
    """Both end to end, from the picture uint8 [H, W, 3]."""
    image = torch.from_numpy(picture.transpose(2, 0, 1).copy())
    with torch.no_grad():
        (theirs,) = reference([image.float() / 255])
    (ours,) = predictor_outputs(predictor, [image])
    theirs = {"keypoints_scores": None, **theirs}
    if "masks" in theirs:
        theirs["mask_probs"] = theirs.pop("masks")[:, 0]
    return compare(ours, theirs)


def predictor_outputs(predictor: detlite.Predictor, images: list[Tensor]) -> list[dict[str, Any]]:
    """Detections in the pictures' frame, with masks as probabilities."""
    inputs = [
        detlite.predictor.resize_shortest(
            image, predictor.min_size, predictor.max_size, predictor.resize
        )
        for image in images
    ]
    found = predictor.model.detect(inputs)
    rules = predictor.model.output
    for detections, resized, image in zip(found, inputs, images, strict=True):
        net, size = tuple(resized.shape[1:]), tuple(image.shape[1:])
        detections["boxes"] = rules.boxes(detections["boxes"], net, size)
        if "mask_probs" in detections:
            detections["mask_probs"] = rules.mask_probs(
                detections["mask_probs"], detections["boxes"], size
            )
        if "keypoints" in detections:
            detections["keypoints"] = rules.keypoints(detections["keypoints"], net, size)
    return found


def main() -> None:
    """Writes docs/model_zoo.md to the standard output."""
    root = Path(__file__).parents[2]
    folder = root / os.environ.get("DETLITE_TEST_DATA", "../shared") / "golden"
    torch.set_num_threads(1)
    print(_HEAD, end="")
    for name, source in GOLDEN.items():
        golden = Golden(folder, name)
        predictor = golden.predictor()
        for case in ("A", "AB_raw", "CD_raw"):
            print(_row(name, source, _CASES[case], golden.compare(predictor, case)), flush=True)
    mask = Golden(folder, "mrb_e2e_mask_rcnn_R_50_FPN_1x")
    for kind in ("faster", "mask"):
        state = torchvision_state(mask, kind)
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "weights.pth"
            torch.save(state, path)
            predictor = detlite.load_checkpoint(path, ["MODEL.DEVICE", "cpu"])
        reference = torchvision_model(kind, state)
        total = Difference()
        for key in "AB":
            picture = mask.recipe.load_picture(key)[0]
            total.merge(compare_torchvision(reference, predictor, picture))
        what = "two pictures, end to end"
        print(_row(f"{kind}rcnn_resnet50_fpn", "torchvision", what, total), flush=True)


_CASES = {
    "A": "one picture, end to end",
    "AB_raw": "two pictures, batched, without the resize",
    "CD_raw": "two small pictures, batched, without the resize",
}
_HEAD = """\
# Faithful to other frameworks

Weights of other frameworks, converted, against what those frameworks make of them. All weights are
made from parameter names, so that nothing needs to be downloaded; detections are matched one to
one. Differences are the largest found: of box corners in pixels, of scores, of mask probabilities,
of pasted masks as a part of their area, and of keypoints in pixels.

This page is generated: `python tests/conversion/fidelity.py > docs/model_zoo.md`.

| model | source | compared | detections | unmatched | box | score | mask | pixels | keypoint |
|---|---|---|---|---|---|---|---|---|---|
"""


def _row(name: str, source: str, what: str, found: Difference) -> str:
    numbers = (found.box, found.score, found.mask, found.pixels, found.keypoint)
    cells = [name, source, what, str(found.count), str(found.unmatched)]
    return "| " + " | ".join(cells + [f"{number:.1g}" for number in numbers]) + " |"


if __name__ == "__main__":
    sys.exit(main())
