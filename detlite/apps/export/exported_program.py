"""Whole detectors as graphs of torch.export, from padded pixels to detections.

Shapes: B images of H x W pixels, P proposals and D detections in an image, padded.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, replace

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F

from detlite.config import ConfigError
from detlite.modeling.detection_model import DetectionModel
from detlite.structures.instances import Detections, GroundTruth, Images, PredictedBoxes, Proposals

from .submodule_export import example_batch

# Pixels float32 [B, 3, H, W] and sizes int64 [B, 2] (of a Fast R-CNN also proposals: boxes float32
# [B, P, 4] and bool [B, P], which are valid) -> the fields of `Detections` that the model has.
Run = Callable[..., list[Tensor]]


class Inference(nn.Module):
    """`DetectionModel.predict` with tensors in place of records: takes and gives what `Run` does."""

    def __init__(self, model: DetectionModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        pixels: Tensor,
        sizes: Tensor,
        boxes: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        given = None
        if boxes is not None and valid is not None:
            given = Proposals(boxes, boxes[..., 0], valid)  # scores of those given are not read
        found = self.model.predict(Images(pixels, sizes), given)
        values = (getattr(found, field.name) for field in fields(found))
        return tuple(value for value in values if value is not None)


class ProgramDetector(DetectionModel):
    """A detector whose `predict` is a program: it infers, and does nothing else.

    Args:
        model: the detector that the program was made of; its weights are not used.
        run: the program.
        batch: how many images a call of it takes; None: any number.
    """

    def __init__(self, model: DetectionModel, run: Run, batch: int | None = None) -> None:
        super().__init__(
            model.normalizer,
            model.backbone,
            model.postprocess,
            model.num_classes,
            model.mask_threshold,
        )
        del self.backbone
        self.min_image_side = model.backbone.min_image_side
        self.required_targets = model.required_targets
        self.takes_proposals = model.takes_proposals
        self.categories = model.categories
        self.run = run
        self.batch = batch
        self.eval()

    def predict(
        self, images: Images, given: Proposals | None = None, min_score: float = 0.0
    ) -> Detections:
        """What the program finds; see `DetectionModel.predict`."""
        height, width = (max(self.min_image_side, side) for side in images.pixels.shape[2:])
        padding = 0, width - images.pixels.shape[3], 0, height - images.pixels.shape[2]
        inputs = [F.pad(images.pixels, padding), images.sizes]
        if given is not None:
            missing = max(0, self.postprocess.detections_per_image - given.valid.shape[1])
            inputs += [F.pad(given.boxes, (0, 0, 0, missing)), F.pad(given.valid, (0, missing))]
        step = self.batch or len(images.pixels)
        parts = zip(*(x.split(step) for x in inputs), strict=True)
        fields_found = zip(*(self.run(*part) for part in parts), strict=True)
        values = iter([torch.cat(field) for field in fields_found])
        found = Detections(next(values), next(values), next(values), next(values))
        if "masks" in self.required_targets:
            found = replace(found, mask_probs=next(values))
        if "keypoints" in self.required_targets:
            found = replace(found, keypoints=next(values), keypoint_scores=next(values))
        return replace(found, valid=found.valid & (found.scores >= min_score))

    def losses(
        self, images: Images, truth: GroundTruth, given: Proposals | None = None
    ) -> dict[str, Tensor]:
        """Raises a RuntimeError: a program cannot be trained."""
        raise RuntimeError("an exported program cannot be trained: load the checkpoint instead")

    def predict_boxes(
        self, features: list[Tensor], images: Images, given: Proposals | None = None
    ) -> PredictedBoxes:
        """Raises a RuntimeError: a program is whole."""
        raise RuntimeError("an exported program has no parts: load the checkpoint instead")


def export_program(model: DetectionModel, batch: int | None = None) -> ExportedProgram:
    """A detector as a graph with our operators in it, as they are registered.

    Height and width may be any multiples of 32 from `Backbone.min_image_side` on, and proposals any number from
    that of the most detections on.

    Args:
        model: left as it is.
        batch: how many images a call takes, 1 or 2; None: any number.

    Raises:
        ConfigError: boxes are fused, which is done on the host.
    """
    if model.postprocess.suppression.method == "fusion":
        raise ConfigError("TEST.NMS.METHOD fusion cannot be exported: take another, such as voting")
    model = deepcopy(model).eval().requires_grad_(False)
    model.static_shapes = True
    images, given = example_batch(model)
    inputs: list[Tensor] = [images.pixels, images.sizes]
    free: list[tuple[int, ...]] = [(2, 3), ()]
    if given is not None:
        inputs += [given.boxes, given.valid]
        free += [(1,), (1,)]
    axes = [own if batch else (0, *own) for own in free]
    with torch.no_grad():
        return torch.export.export(
            Inference(model),
            tuple(x[:batch] for x in inputs),
            dynamic_shapes=tuple(dict.fromkeys(own, Dim.AUTO) for own in axes),
        )
