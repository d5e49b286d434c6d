"""torchvision's detectors, compared with detlite's with the same weights."""

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
from detlite.conversion.convert import SOURCES
from detlite.data.transforms.resize import resize_shortest
from tests.conversion.detection_differences import (
    DetectionDifference,
    as_dict,
    compare,
    in_original_image,
)

# Detectors with published weights, and their norm: frozen with this epsilon, or None: batch norm.
TORCHVISION = {
    "fasterrcnn_resnet50_fpn": 0.0,
    "maskrcnn_resnet50_fpn": 0.0,
    "keypointrcnn_resnet50_fpn": 0.0,
    "retinanet_resnet50_fpn": 0.0,
    "fasterrcnn_resnet50_fpn_v2": None,
    "maskrcnn_resnet50_fpn_v2": None,
    "retinanet_resnet50_fpn_v2": None,
    "fasterrcnn_mobilenet_v3_large_fpn": 1e-5,
    "fasterrcnn_mobilenet_v3_large_320_fpn": 1e-5,
}
# Factors of the last layers that lead to boxes of all sizes and scores between 0 and 1.
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
    """Build a detector of torchvision like that of its published weights, with other weights.

    Args:
        name: a key of TORCHVISION.
        recipe: the module that makes the weights, see `load_recipe`.
        options: keyword arguments of torchvision's constructor.
    """
    model = getattr(detection, name)(weights=None, weights_backbone=None, **options)
    if (eps := TORCHVISION[name]) is not None:
        freeze_norm(model, eps)
    first = map(str, range(4)) if "mobilenet" in name else ("conv1", "bn1", "layer1")
    for stage in first:
        model.backbone.body[stage].requires_grad_(False)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    entries = [(name, shape, "float32") for name, shape in shapes.items()]
    values = {k: np.full(shapes[k], v) for k, v in _VALUES.items() if k in shapes}
    state = recipe.build_state(entries, _GAINS, values)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    return model.eval()


def freeze_norm(module: torch.nn.Module, eps: float) -> None:
    """Replace batch norm by torchvision's frozen one."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.BatchNorm2d):
            setattr(module, name, FrozenBatchNorm2d(child.num_features, eps=eps))
        else:
            freeze_norm(child, eps)


def predictor_of(reference: torch.nn.Module, opts: Sequence[Any] = ()) -> detlite.Predictor:
    """Load a predictor from a file of the weights of a torchvision model.

    Its model is not optimized, so that it can be trained and its weights can be converted back.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.pth"
        torch.save(reference.state_dict(), path)
        return detlite.load_checkpoint(path, ["MODEL.DEVICE", "cpu", "TEST.OPTIMIZE", False, *opts])


@dataclass
class StepDifference:
    """Largest relative differences of losses and gradients in a training step.

    The difference of a gradient is its norm divided by the norm of the gradient, but at least by
    1e-6 of the norm of all gradients: some gradients (of biases before a softmax) are 0.
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
) -> StepDifference:
    """Compare a training step on uint8 images, without random sampling.

    In float32, rounding errors change the sign of some activations, and gradients change with the
    ReLUs. In float64 this hardly happens.
    """
    expected_model, model = (
        deepcopy(reference).to(dtype).train(),
        deepcopy(predictor.model).to(dtype),
    )
    # torchvision does not round mean and std to float32.
    normalizer, transform = model.normalizer, expected_model.transform
    normalizer.pixel_mean.copy_(torch.tensor(transform.image_mean, dtype=dtype).view(3, 1, 1))
    normalizer.pixel_std.copy_(torch.tensor(transform.image_std, dtype=dtype).view(3, 1, 1))
    floating = [
        {k: v.to(dtype) if k == "boxes" else v for k, v in target.items()} for target in targets
    ]

    def decreasing_keys(shape: Sequence[int], **_: Any) -> Tensor:
        return torch.linspace(1, 0, shape[-1]).expand(shape)

    # Both sample the first candidates.
    with (
        patch.object(torch, "randperm", lambda n, **_: torch.arange(n)),
        patch.object(torch, "rand", decreasing_keys),
    ):
        losses = model.train()(images, targets)
        expected = expected_model([image.to(dtype) / 255 for image in images], floating)
    expected = {_LOSSES.get(name, name): loss for name, loss in expected.items()}
    assert losses.keys() == expected.keys()
    sum(losses.values()).backward()
    sum(expected.values()).backward()
    originals = SOURCES["torchvision"].rename({name: name for name in expected_model.state_dict()})
    parameters = {originals[name]: parameter for name, parameter in model.named_parameters()}
    trained = [p.grad for p in expected_model.parameters() if p.requires_grad]
    smallest = 1e-6 * torch.stack([grad.norm() for grad in trained]).norm()
    gradients = {}
    for name, parameter in expected_model.named_parameters():
        assert parameters[name].requires_grad == parameter.requires_grad, name
        if parameter.requires_grad:
            difference = (parameters[name].grad - parameter.grad).norm()
            gradients[name] = (difference / parameter.grad.norm().clamp(min=smallest)).item()
    errors = [((losses[k] - expected[k]).abs() / expected[k].abs()).item() for k in losses]
    return StepDifference(max(errors), max(gradients.values()), len(gradients))


_LOSSES = {
    "loss_rpn_box_reg": "loss_rpn_box",
    "loss_box_reg": "loss_box",
    "classification": "loss_classifier",
    "bbox_regression": "loss_box",
}


def training_batch(
    recipe: ModuleType, sizes: dict[str, tuple[int, int]], classes: int
) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Make images uint8 [3, H, W] of these sizes with shapes as ground truth.

    The keypoints of an object are its corners, repeated.
    """
    images, targets = [], []
    for key, (height, width) in sizes.items():
        pixels, shapes = recipe.picture(key, height, width, 8)
        boxes = torch.tensor([shape[1:] for shape in shapes], dtype=torch.float32)
        masks = np.stack([recipe.shape_mask(*shape, height, width) for shape in shapes])
        labels = recipe.randint(f"labels:{key}", len(shapes), 1, classes)
        corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].unflatten(1, (4, 2)).repeat(1, 5, 1)[:, :17]
        visible = torch.arange(17).remainder(3).expand(len(boxes), 17)[..., None]
        images.append(torch.from_numpy(pixels.transpose(2, 0, 1).copy()))
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
    reference: torch.nn.Module, predictor: detlite.Predictor, pixels: np.ndarray
) -> DetectionDifference:
    """Compare the detections in an image uint8 [H, W, 3], end to end."""
    image = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
    with torch.no_grad():
        (expected,) = reference([image.float() / 255])
    model = predictor.model
    resized = resize_shortest(
        image, predictor.min_size, predictor.max_size, model.convention.resize
    )
    detections = as_dict(model.detect([resized])[0])
    detections["map_sizes"] = _map_sizes(detections["boxes"])
    size = tuple(image.shape[1:])
    detections = in_original_image(model, detections, tuple(resized.shape[1:]), size, paste=True)
    if "masks" in expected:
        expected["mask_probs"] = expected.pop("masks")[:, 0]
    if "keypoints" in expected:
        (input_size,) = reference.transform([image / 255])[0].image_sizes
        height, width = (a / b for a, b in zip(input_size, size, strict=True))
        expected["map_sizes"] = _map_sizes(expected["boxes"] * torch.tensor([width, height] * 2))
    return compare(detections, expected)


def _map_sizes(boxes: Tensor) -> Tensor:
    """Return the sides, in whole pixels, to which keypoint heat maps are enlarged."""
    return (boxes[:, 2:] - boxes[:, :2]).clamp(min=1).ceil()
