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
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from pycocotools import mask as rle_codec
from torch import Tensor
from torchvision.models import detection
from torchvision.ops import FrozenBatchNorm2d

import detlite
from detlite.conversion import to_torchvision

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
    keypoint: float = 0.0  # pixels, of those with one highest cell
    keypoint_score: float = 0.0  # logits of torchvision, probabilities of detectron2
    ties: int = 0  # keypoints elsewhere in the box, where their map is as high

    def merge(self, other: Difference) -> None:
        """Takes the larger of each."""
        self.count += other.count
        self.unmatched += other.unmatched
        self.ties += other.ties
        for name in ("box", "score", "mask", "pixels", "keypoint", "keypoint_score"):
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
    if "keypoints" in theirs:
        moved = (ours["keypoints"][our] - theirs["keypoints"][their])[..., :2].abs().amax(-1)
        result.keypoint_score = largest("keypoints_scores")
        # A map may be as high elsewhere, up to the rounding of its sums.
        tie = moved > 0.5
        result.ties = int(tie.sum())
        result.keypoint = moved[~tie].max().item()
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
            resized = detlite.predictor.resize_shortest(images[0], 800, 1333, predictor.resize)
            assert tuple(resized.shape[1:]) == sizes[0]
            images = [resized]
        total = Difference()
        model = predictor.model
        every = model.detect(images)
        if "keypoints" in every[0]:
            _scores_as_probabilities(model, images, every)
        for index, detections in enumerate(every):
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


@torch.no_grad()
def _scores_as_probabilities(
    model: Any, images: list[Tensor], detections: list[dict[str, Tensor]]
) -> None:
    """detectron2's scores of keypoints: the softmax of a map, at its enlarged maximum."""
    features = model.backbone(model.normalizer(images).tensor)
    boxes, labels = ([found[name] for found in detections] for name in ("boxes", "labels"))
    for found, maps in zip(detections, model.region_maps(features, boxes, labels), strict=True):
        total = maps["keypoint_logits"].flatten(2).logsumexp(dim=2)
        found["keypoints_scores"] = (found["keypoints_scores"] - total).exp()


def load_recipe(folder: Path) -> ModuleType:
    """The module recipe.py of the recorded outputs."""
    spec = importlib.util.spec_from_file_location("golden_recipe", folder / "recipe.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- torchvision, live

# The detectors that have published weights, and which norm those were made with: frozen with an
# epsilon of 0, or batch norm.
TORCHVISION = {
    "fasterrcnn_resnet50_fpn": "frozen",
    "maskrcnn_resnet50_fpn": "frozen",
    "keypointrcnn_resnet50_fpn": "frozen",
    "retinanet_resnet50_fpn": "frozen",
    "fasterrcnn_resnet50_fpn_v2": "batch",
    "maskrcnn_resnet50_fpn_v2": "batch",
    "retinanet_resnet50_fpn_v2": "batch",
}
# The recipe's last layers are made smaller, so that boxes of all places and sizes come out, and
# scores that are neither 0 nor 1.
_GAINS = {
    "rpn.head.cls_logits.weight": 0.5,
    "rpn.head.bbox_pred.weight": 0.05,
    "roi_heads.box_predictor.cls_score.weight": 1.5,
    "roi_heads.box_predictor.bbox_pred.weight": 0.5,
    "roi_heads.mask_predictor.mask_fcn_logits.weight": 0.5,
    "head.classification_head.cls_logits.weight": 0.3,
    "head.regression_head.bbox_reg.weight": 0.1,
}
_VALUES = {"head.classification_head.cls_logits.bias": -2.0}


def torchvision_model(name: str, recipe: ModuleType, **options: Any) -> torch.nn.Module:
    """torchvision's detector as it is built for its published weights, with the recipe's.

    Args:
        name: one of TORCHVISION.
        recipe: the recorded outputs' module recipe.py.
        options: keywords of torchvision's constructor.
    """
    model = getattr(detection, name)(weights=None, weights_backbone=None, **options)
    if TORCHVISION[name] == "frozen":
        _freeze_norm(model)
    for part in ("conv1", "bn1", "layer1"):  # two stages are not trained, nor is the stem
        model.backbone.body[part].requires_grad_(False)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    entries = [(name, shape, "float32") for name, shape in shapes.items()]
    values = {k: np.full(shapes[k], v) for k, v in _VALUES.items() if k in shapes}
    state = recipe.build_state(entries, _GAINS, values)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    return model.eval()


def _freeze_norm(module: torch.nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, torch.nn.BatchNorm2d):
            setattr(module, name, FrozenBatchNorm2d(child.num_features, eps=0.0))
        else:
            _freeze_norm(child)


def predictor_of(reference: torch.nn.Module, opts: Sequence[Any] = ()) -> detlite.Predictor:
    """Ours, from a file with the weights of a torchvision model, with overrides of its config."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.pth"
        torch.save(reference.state_dict(), path)
        return detlite.load_checkpoint(path, ["MODEL.DEVICE", "cpu", *opts])


@dataclass
class Step:
    """Largest relative differences of a training step, and what was compared.

    A gradient's is the norm of the difference over the norm, parameter by parameter; one that
    should be zero (of a bias before a softmax) is measured by a millionth of the whole gradient.
    """

    losses: float
    gradients: float
    parameters: int


def compare_step(
    reference: torch.nn.Module,
    predictor: detlite.Predictor,
    images: list[Tensor],
    targets: list[dict[str, Tensor]],
    dtype: torch.dtype,
) -> Step:
    """One training step of both on uint8 images; what is drawn at random is not drawn here.

    In float32 the gradients of such deep nets depend on the order of every sum: a ReLU that is
    open in one and shut in the other. In float64 hardly any is so close to its corner.
    """
    theirs, model = deepcopy(reference).to(dtype).train(), deepcopy(predictor.model).to(dtype)
    # their own are never rounded to float32
    normalizer, transform = model.normalizer, theirs.transform
    normalizer.pixel_mean.copy_(torch.tensor(transform.image_mean, dtype=dtype).view(3, 1, 1))
    normalizer.pixel_std.copy_(torch.tensor(transform.image_std, dtype=dtype).view(3, 1, 1))
    floating = [
        {k: v.to(dtype) if k == "boxes" else v for k, v in target.items()} for target in targets
    ]
    drawn, torch.randperm = torch.randperm, lambda n, **_: torch.arange(n)  # type: ignore
    try:
        found = model.train()(images, targets)
        wanted = theirs([image.to(dtype) / 255 for image in images], floating)
    finally:
        torch.randperm = drawn
    wanted = {_LOSSES.get(name, name): loss for name, loss in wanted.items()}
    assert found.keys() == wanted.keys()
    sum(found.values()).backward()
    sum(wanted.values()).backward()
    ours = to_torchvision(dict(model.named_parameters()))
    trained = [p.grad for p in theirs.parameters() if p.requires_grad]
    least = 1e-6 * torch.stack([grad.norm() for grad in trained]).norm()
    gradients = {}
    for name, parameter in theirs.named_parameters():
        assert ours[name].requires_grad == parameter.requires_grad, name
        if parameter.requires_grad:
            difference = (ours[name].grad - parameter.grad).norm()
            gradients[name] = (difference / parameter.grad.norm().clamp(min=least)).item()
    losses = [((found[k] - wanted[k]).abs() / wanted[k].abs()).item() for k in found]
    return Step(max(losses), max(gradients.values()), len(gradients))


_LOSSES = {
    "loss_rpn_box_reg": "loss_rpn_box",
    "loss_box_reg": "loss_box",
    "classification": "loss_classifier",
    "bbox_regression": "loss_box",
}


def training_batch(
    recipe: ModuleType, sizes: dict[str, tuple[int, int]], classes: int
) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Pictures of the recipe's kind, uint8 [3, H, W], of the given names and sizes, and their
    shapes as ground truth, each with its corners as keypoints."""
    images, targets = [], []
    for key, (height, width) in sizes.items():
        picture, shapes = recipe.picture(key, height, width, 8)
        boxes = torch.tensor([shape[1:] for shape in shapes], dtype=torch.float32)
        masks = np.stack([recipe.shape_mask(*shape, height, width) for shape in shapes])
        labels = recipe.randint(f"labels:{key}", len(shapes), 1, classes)
        corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].unflatten(1, (4, 2)).repeat(1, 5, 1)[:, :17]
        visible = torch.arange(17).remainder(3).expand(len(boxes), 17)[..., None]
        images.append(torch.from_numpy(picture.transpose(2, 0, 1).copy()))
        targets.append(
            {
                "boxes": boxes,
                "labels": torch.from_numpy(labels),
                "masks": torch.from_numpy(masks.astype(np.uint8)),
                "keypoints": torch.cat([corners, visible.float()], dim=2),
            }
        )
    return images, targets


def compare_torchvision(
    reference: torch.nn.Module, predictor: detlite.Predictor, picture: np.ndarray
) -> Difference:
    """Both end to end, from the picture uint8 [H, W, 3]."""
    image = torch.from_numpy(picture.transpose(2, 0, 1).copy())
    with torch.no_grad():
        (theirs,) = reference([image.float() / 255])
    (ours,) = predictor_outputs(predictor, [image])
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
    recipe = load_recipe(folder)
    for name in TORCHVISION:
        reference = torchvision_model(name, recipe)
        predictor = predictor_of(reference)
        total = Difference()
        for key in "AB":
            picture = recipe.load_picture(key)[0]
            total.merge(compare_torchvision(reference, predictor, picture))
        print(_row(name, "torchvision", "two pictures, end to end", total), flush=True)
    print(_STEPS_HEAD, end="")
    sizes = {"E": (96, 128), "F": (128, 96)}
    few = ["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 32]
    for name in TORCHVISION:
        options = {"box_batch_size_per_image": 32} if "rcnn" in name else {}
        reference = torchvision_model(name, recipe, min_size=96, **options)
        predictor = predictor_of(reference, few)
        batch = training_batch(recipe, sizes, classes=2 if "keypoint" in name else 91)
        for dtype in (torch.float64, torch.float32):
            step = compare_step(reference, predictor, *batch, dtype)
            cells = [name, str(dtype).removeprefix("torch."), str(step.parameters)]
            cells += [f"{step.losses:.1g}", f"{step.gradients:.1g}"]
            print("| " + " | ".join(cells) + " |", flush=True)


_CASES = {
    "A": "one picture, end to end",
    "AB_raw": "two pictures, batched, without the resize",
    "CD_raw": "two small pictures, batched, without the resize",
}
_HEAD = """\
# Faithful to other frameworks

Weights of other frameworks, converted, against what those frameworks make of them. All weights are
made from parameter names, so that nothing needs to be downloaded; detections are matched one to
one. Of detectron2 and maskrcnn-benchmark the outputs were recorded, torchvision runs beside.

Differences are the largest found: of box corners in pixels; of scores; of mask probabilities; of
pasted masks, the pixels that differ over the area of all masks of a picture; of keypoints in
pixels; of keypoints' scores, logits of torchvision and probabilities of detectron2. A map that is
as high in two places, up to the rounding of its sums, has its keypoint in either: such *ties* are
counted and left out. A cell is empty where nothing differs, or a model has nothing to compare.

This page is generated: `python tests/conversion/fidelity.py > docs/model_zoo.md`.

| model | source | compared | detections | unmatched | box | score | mask | pixels | keypoint | keypoint score | ties |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""  # noqa: E501
_STEPS_HEAD = """
## A training step beside torchvision's

Losses and gradients on two small pictures, with what is drawn at random fixed (`torch.randperm` as
`torch.arange`). Differences are relative: the largest of a loss, and the largest over parameters of
the norm of the gradient's difference over the gradient's norm.

In float32 such gradients are noise to some 1e-3 (with batch norm, 1e-2): whether a ReLU is open may
depend on the last bit of a sum. torchvision's own move as far when its weights are changed by half
a bit. In float64 hardly any is that close to its corner.

| model | arithmetic | parameters | losses | gradients |
|---|---|---|---|---|
"""


def _row(name: str, source: str, what: str, found: Difference) -> str:
    numbers = (found.box, found.score, found.mask, found.pixels, found.keypoint,
               found.keypoint_score)  # fmt: skip
    cells = [name, source, what, str(found.count), str(found.unmatched)]
    cells += [f"{number:.1g}" if number else "" for number in numbers]
    return "| " + " | ".join([*cells, str(found.ties)]) + " |"


if __name__ == "__main__":
    sys.exit(main())
