"""torchvision's detectors, live, beside ours with the same weights."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torchvision.models import detection
from torchvision.ops import FrozenBatchNorm2d

import detlite
from detlite.conversion import to_torchvision
from detlite.data.transforms.resize import resize_shortest
from detlite.structures import boxes as box_ops
from detlite.structures.keypoints import rescale_keypoints
from detlite.structures.masks.pasting import paste_boxes, paste_probabilities
from tests.conversion.detection_differences import Difference, as_dict, compare

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
    """Ours, from a file with the weights of a torchvision model, with overrides of its config.

    The model is the plain one: it trains, and its weights go back.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.pth"
        torch.save(reference.state_dict(), path)
        return detlite.load_checkpoint(path, ["MODEL.DEVICE", "cpu", "TEST.OPTIMIZE", False, *opts])


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

    def falling_keys(shape: Sequence[int], **_: Any) -> Tensor:
        return torch.linspace(1, 0, shape[-1]).expand(shape)

    # Both take the first of what there is.
    with (
        patch.object(torch, "randperm", lambda n, **_: torch.arange(n)),
        patch.object(torch, "rand", falling_keys),
    ):
        found = model.train()(images, targets)
        wanted = theirs([image.to(dtype) / 255 for image in images], floating)
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
    if "keypoints" in theirs:
        (seen,) = reference.transform([image / 255])[0].image_sizes
        height, width = (a / b for a, b in zip(seen, image.shape[1:], strict=True))
        theirs["map_sizes"] = _map_sizes(theirs["boxes"] * torch.tensor([width, height] * 2))
    return compare(ours, theirs)


def _map_sizes(boxes: Tensor) -> Tensor:
    """The sides, in whole pixels, to which keypoints' maps are enlarged."""
    return (boxes[:, 2:] - boxes[:, :2]).clamp(min=1).ceil()


def predictor_outputs(predictor: detlite.Predictor, images: list[Tensor]) -> list[dict[str, Any]]:
    """Detections in the pictures' frame, with masks as probabilities."""
    inputs = [
        resize_shortest(
            image, predictor.min_size, predictor.max_size, predictor.model.convention.resize
        )
        for image in images
    ]
    found = [as_dict(one) for one in predictor.model.detect(inputs)]
    convention = predictor.model.convention
    for detections, resized, image in zip(found, inputs, images, strict=True):
        net, size = tuple(resized.shape[1:]), tuple(image.shape[1:])
        detections["map_sizes"] = _map_sizes(detections["boxes"])
        detections["boxes"] = box_ops.rescale(detections["boxes"], net, size, convention)
        if "mask_probs" in detections:
            detections["mask_probs"] = paste_probabilities(
                detections["mask_probs"],
                paste_boxes(detections["boxes"], detections["mask_probs"].shape[-1], convention),
                size,
            )
        if "keypoints" in detections:
            detections["keypoints"] = rescale_keypoints(detections["keypoints"], net, size)
    return found
