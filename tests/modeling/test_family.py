"""Test properties of all models: one table of models and properties."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from yacs.config import CfgNode

from detlite.modeling.build import META_ARCHITECTURES, build_model
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.optimize_for_training import use_static_shapes
from detlite.modeling.retinanet import RetinaNet
from detlite.ops import dispatch
from detlite.structures.instances import Detections, GroundTruth, Images, Proposals
from detlite.structures.masks.packed import PackedMasks
from tests.builders import tiny_config
from tests.modeling.family import (
    ALL,
    ALL_SCORES,
    FAMILY,
    TIMM_VARIANTS,
    assert_same_detections,
    check_losses,
    family_batch,
    family_config,
    losses_and_gradients,
    spread_scores,
)


@dataclass
class Case:
    """A model, a batch for it, and what it computes with dynamic shapes and the kernels."""

    config: CfgNode
    model: DetectionModel
    batch: tuple[Images, GroundTruth, Proposals | None]
    losses: dict[str, Tensor]
    gradients: dict[str, Tensor]
    detections: Detections

    def check_training(self, losses: Any, gradients: Any) -> None:
        assert gradients.keys() == self.gradients.keys()
        torch.testing.assert_close(losses, self.losses, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradients, self.gradients, rtol=1e-3, atol=1e-5)


@cache
def computed(name: str) -> Case:
    torch.manual_seed(0)
    config = family_config(name, tiny_config)
    model = build_model(config)
    batch = family_batch(model)
    images, _, proposals = batch
    if isinstance(model, RetinaNet):
        spread_scores(model, images)
    results = losses_and_gradients(deepcopy(model), *batch)
    with torch.no_grad():
        detections = deepcopy(model).eval().predict(images, proposals)
    assert detections.valid.any()
    return Case(config, model, batch, *results, detections)


def predict(case: Case, model: DetectionModel) -> Detections:
    images, _, proposals = case.batch
    with torch.no_grad():
        return model.eval().predict(images, proposals)


def static_shapes_detect_the_same(case: Case) -> None:
    model = deepcopy(case.model)
    model.static_shapes = True
    assert_same_detections(predict(case, model), case.detections)


def static_shapes_train_the_same(case: Case) -> None:
    for reads_foreground in (False, True):
        model = deepcopy(case.model)
        model.static_shapes, model.reads_foreground = True, reads_foreground
        case.check_training(*losses_and_gradients(model, *case.batch))


def the_heads_train_on_little_more_than_the_foreground(case: Case) -> None:
    model = deepcopy(case.model).train()
    use_static_shapes(model)
    seen: dict[str, Tensor] = {}
    for name, head in model.roi_heads.heads.items():
        head.register_forward_hook(lambda _, inputs, __, name=name: seen.update({name: inputs[1]}))
    model.losses(*case.batch)
    assert len(seen) == 2
    for rois in seen.values():
        foreground = int((rois[:, 0] >= 0).sum())
        assert 0 < foreground <= len(rois) <= foreground + 8 < 200


def shared_features_are_those_of_the_rows_of_the_head(case: Case) -> None:
    """A head that computes the features of the box head again is trained and predicts the same."""
    for static in (False, True):
        results = []
        for again in (False, True):
            model = deepcopy(case.model)
            model.static_shapes, heads = static, model.roi_heads
            model.sampler = replace(model.sampler, positive_fraction=0.3)
            heads.mask.feature_extractor = heads.box.feature_extractor if again else None
            training = losses_and_gradients(model, *case.batch)
            results.append((training, predict(case, model).mask_probs))
        torch.testing.assert_close(*results, rtol=1e-3, atol=1e-5)


def padding_of_ground_truth_has_no_effect(case: Case) -> None:
    images, truth, proposals = case.batch
    masks, (count, length) = truth.masks, truth.labels.shape
    if masks is not None:
        places = torch.arange(count * length).view(count, length)
        masks = PackedMasks.collate([masks.select(place) for place in places], length + 3)
    boxes, labels = F.pad(truth.boxes, (0, 0, 0, 3), value=7.0), F.pad(truth.labels, (0, 3))
    padded = replace(truth, boxes=boxes, labels=labels, masks=masks)
    for static in (False, True):
        model = deepcopy(case.model)
        model.static_shapes = static
        case.check_training(*losses_and_gradients(model, images, padded, proposals))


class Inference(nn.Module):
    """`predict` as a module, for torch.export."""

    def __init__(self, model: DetectionModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Images, proposals: Proposals | None) -> Detections:
        return self.model.predict(images, proposals)


@torch.no_grad()
def exported_models_detect_the_same(case: Case) -> None:
    """Also in other batches and sizes."""
    model = deepcopy(case.model).eval()
    with pytest.raises(RuntimeError, match=r"needs model\.static_shapes = True"):
        torch.export.export(model, ([torch.rand(3, 64, 96)],))
    model.static_shapes = True
    auto = torch.export.Dim.AUTO
    shapes = ([{0: auto, 2: auto, 3: auto}, {0: auto}], None)
    inputs = case.batch[0], None
    program = torch.export.export(Inference(model), inputs, dynamic_shapes=shapes)
    others, _ = model.prepare([torch.rand(3, *size) for size in ((96, 128), (90, 70)) * 2])
    assert_same_detections(program.module()(others, None), model.predict(others))


def fallback_operators_compute_the_same(case: Case) -> None:
    called = set()
    kernels = dict(dispatch.FALLBACKS)

    def noting(name: str) -> Callable[..., Any]:
        return lambda *arguments: called.add(name) or kernels[name](*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "FALLBACKS", {name: noting(name) for name in kernels})
        with dispatch.use_fallback_ops():
            case.check_training(*losses_and_gradients(deepcopy(case.model), *case.batch))
            assert_same_detections(predict(case, deepcopy(case.model)), case.detections)
    assert {"match_boxes", "padded_nms"} <= called
    assert ("crop_masks" in called) == bool(case.config.MODEL.MASK_ON)
    assert ("heatmap_peaks" in called) == bool(case.config.MODEL.KEYPOINT_ON)


def steps_on_a_gpu_read_no_values(case: Case) -> None:
    """Fake CUDA tensors have no values, so every operation that would wait for one raises.

    The backward pass runs on fake CPU tensors, because torch's engine requires a real GPU.
    """
    for device in ("cuda", "cpu"):
        with FakeTensorMode() as mode, torch.device(device):
            build = META_ARCHITECTURES.get(case.config.MODEL.META_ARCHITECTURE, "")
            model = build(case.config).train()
            model.static_shapes = True

            def fake(value: Any, mode: FakeTensorMode = mode, device: str = device) -> Any:
                is_tensor = isinstance(value, Tensor)
                return mode.from_tensor(value).to(device) if is_tensor else value

            images, truth, proposals = pytree.tree_map(fake, case.batch)
            losses = model.losses(images, truth, proposals)
            assert {loss.device.type for loss in losses.values()} == {device}
            if device == "cpu":
                trainable = [p for p in model.parameters() if p.requires_grad]
                optimizer = torch.optim.SGD(trainable, lr=0.1, momentum=0.9)
                torch.stack(list(losses.values())).sum().backward()
                optimizer.step()
            with torch.no_grad():
                detections = model.eval().predict(images, proposals)
            assert detections.boxes.device.type == device


@torch.no_grad()
def images_of_a_batch_are_independent(case: Case) -> None:
    model, (images, _, proposals) = deepcopy(case.model).eval(), case.batch
    for number in range(2):
        own = None if proposals is None else proposals[number : number + 1]
        alone = model.predict(images[number : number + 1], own)
        assert_same_detections(alone, case.detections[number : number + 1])


_FEW = ("mask", "c4", "keypoint", "cascade", "retinanet")
_FAKE_SLOW = [name for name in FAMILY if name not in ("keypoint", "maskrcnn-benchmark", "extra")]
# Each property with the models that it is tested for, fast and slow ones.
PROPERTIES: dict[Callable[[Case], None], tuple[Any, Any]] = {
    static_shapes_detect_the_same: (FAMILY, ()),
    # Padding is no part of batch statistics.
    static_shapes_train_the_same: ((*FAMILY, "BN, convolutions", "c4, batch norm"), ()),
    the_heads_train_on_little_more_than_the_foreground: (("keypoint",), ()),
    shared_features_are_those_of_the_rows_of_the_head: (("c4",), ()),
    padding_of_ground_truth_has_no_effect: (("mask", "cascade", "retinanet", "proposals"), ("c4",)),
    exported_models_detect_the_same: ((), ("keypoint", "cascade", "soft", "retinanet-torchvision")),
    fallback_operators_compute_the_same: (_FEW, ("voting",)),
    steps_on_a_gpu_read_no_values: (("keypoint",), _FAKE_SLOW),
    images_of_a_batch_are_independent: (("mask", "c4", "cascade", "retinanet"), ()),
}


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        pytest.param(name, holds, id=f"{name}: {holds.__name__}", marks=marks)
        for holds, (fast, slow) in PROPERTIES.items()
        for names, marks in ((fast, ()), (slow, pytest.mark.slow))
        for name in names
    ],
)
def test_property(name, holds):
    holds(computed(name))


# ---- by lists of images and targets


def loss_names(model: DetectionModel) -> set[str]:
    if not hasattr(model, "roi_heads"):
        boxes = {"loss_classifier", "loss_box"}
        return {"loss_objectness", "loss_rpn_box"} if hasattr(model, "rpn") else boxes
    names = set() if model.takes_proposals else {"loss_objectness", "loss_rpn_box"}
    stages = len(getattr(model.roi_heads.box, "ious", ()))
    endings = [f"_stage{number}" for number in range(stages)] or [""]
    names |= {f"loss_{kind}{ending}" for kind in ("classifier", "box") for ending in endings}
    return names | {f"loss_{name}" for name in model.roi_heads.heads}


@pytest.mark.parametrize("name", ALL)
def test_trains_and_detects(name, make_batch):
    """Losses are finite and reach all parameters, with and without objects."""
    if name in TIMM_VARIANTS:
        pytest.importorskip("timm", reason="timm is not installed")
    model = build_model(
        family_config(name, tiny_config, "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 32)
    )
    for counts in ((2, 1), (0, 0)):
        images, targets = make_batch(*counts)
        check_losses(model.train(), model(images, targets), loss_names(model))
    results = model.eval()(images, targets if model.takes_proposals else None)
    for result, image in zip(results, images, strict=True):
        check_detections(result, image, model)
        assert len(result["boxes"]) == 0 or "no proposals" not in name


def test_autocast_keeps_losses_and_results_in_float32(make_batch):
    model = build_model(family_config("mask", tiny_config, *ALL_SCORES)).train()
    images, targets = make_batch(2, 0)
    with torch.autocast("cpu", torch.bfloat16):
        losses = model(images, targets)
        results = model.eval()(images)
    check_losses(model, losses)
    for result, image in zip(results, images, strict=True):
        check_detections(result, image, model)
        assert len(result["boxes"]) == 20


def check_detections(result: dict[str, Tensor], image: Tensor, model: DetectionModel) -> None:
    """Check types, shapes and ranges of the detections of an image."""
    height, width = image.shape[1:]
    count = len(result["boxes"])
    heads = set(model.required_targets)
    more = {"keypoints_scores"} if "keypoints" in heads else set()
    assert result.keys() == {"boxes", "labels", "scores", *heads, *more, *model.extra_outputs}
    assert count <= model.postprocess.detections_per_image
    forms = {"boxes": (torch.float32, (count, 4)), "scores": (torch.float32, (count,)),
             "labels": (torch.int64, (count,)), "masks": (torch.float32, (count, 1, height, width)),
             "keypoints": (torch.float32, (count, 3, 3))}  # fmt: skip
    for name, form in forms.items():
        if name in result:
            assert (result[name].dtype, tuple(result[name].shape)) == form
    boxes, limits = result["boxes"], torch.tensor([width, height, width, height])
    assert (result["scores"].diff() <= 0).all()
    assert ((result["labels"] >= model.postprocess.convention.retinanet_scores_background * -1)
            & (result["labels"] < model.num_classes)).all()  # fmt: skip
    assert (boxes[:, 2:] >= boxes[:, :2]).all()
    assert ((boxes >= 0) & (boxes <= limits)).all()
    if "masks" in result:
        assert ((result["masks"] >= 0) & (result["masks"] <= 1 + 1e-6)).all()
