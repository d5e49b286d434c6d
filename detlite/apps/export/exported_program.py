"""Export whole detectors with torch.export, from padded pixels to detections.

Shapes: B images of H x W pixels, with P proposals and D detections each, padded.
"""

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

# Takes pixels float32 [B, 3, H, W] and sizes int64 [B, 2]; for a Fast R-CNN also proposals float32
# [B, P, 4] and their validity bool [B, P]. Returns the fields of `Detections` that are not None.
Run = Callable[..., list[Tensor]]


class Inference(nn.Module):
    """`DetectionModel.predict` with tensors in place of records, as in `Run`."""

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
        proposals = None
        if boxes is not None and valid is not None:
            proposals = Proposals(boxes, boxes[..., 0], valid)  # the scores are not used
        detections = self.model.predict(Images(pixels, sizes), proposals)
        values = (getattr(detections, field.name) for field in fields(detections))
        return tuple(value for value in values if value is not None)


class ProgramDetector(DetectionModel):
    """A detector whose `predict` runs an exported program; it cannot be trained.

    Args:
        model: the exported model; its weights are not used.
        run: the program.
        batch: number of images per call of the program; None if any.
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
        self, images: Images, proposals: Proposals | None = None, min_score: float = 0.0
    ) -> Detections:
        """Run the program; see `DetectionModel.predict`."""
        height, width = (max(self.min_image_side, side) for side in images.pixels.shape[2:])
        padding = 0, width - images.pixels.shape[3], 0, height - images.pixels.shape[2]
        inputs = [F.pad(images.pixels, padding), images.sizes]
        if proposals is not None:
            boxes, valid = proposals.boxes, proposals.valid
            missing = max(0, self.postprocess.detections_per_image - valid.shape[1])
            inputs += [F.pad(boxes, (0, 0, 0, missing)), F.pad(valid, (0, missing))]
        step = self.batch or len(images.pixels)
        parts = zip(*(x.split(step) for x in inputs), strict=True)
        outputs = zip(*(self.run(*part) for part in parts), strict=True)
        values = iter([torch.cat(field) for field in outputs])
        detections = Detections(next(values), next(values), next(values), next(values))
        if "masks" in self.required_targets:
            detections = replace(detections, mask_probs=next(values))
        if "keypoints" in self.required_targets:
            detections = replace(detections, keypoints=next(values), keypoint_scores=next(values))
        return replace(detections, valid=detections.valid & (detections.scores >= min_score))

    def losses(
        self, images: Images, truth: GroundTruth, proposals: Proposals | None = None
    ) -> dict[str, Tensor]:
        """Raise a RuntimeError: a program cannot be trained."""
        raise RuntimeError("an exported program cannot be trained: load the checkpoint instead")

    def predict_boxes(
        self, features: list[Tensor], images: Images, proposals: Proposals | None = None
    ) -> PredictedBoxes:
        """Raise a RuntimeError: a program cannot be run in parts."""
        raise RuntimeError("an exported program has no parts: load the checkpoint instead")


def export_program(model: DetectionModel, batch: int | None = None) -> ExportedProgram:
    """Export a detector as a graph that contains detlite's operators.

    Height and width may be any multiples of 32 that are at least `Backbone.min_image_side`, and
    the number of proposals must be at least the maximum number of detections.

    Args:
        model: the detector, which is not changed.
        batch: number of images per call, 1 or 2; None: any number.

    Raises:
        ConfigError: the model fuses boxes, which runs outside of the graph.
    """
    if model.postprocess.suppression.method == "fusion":
        raise ConfigError("TEST.NMS.METHOD fusion cannot be exported: use another, such as voting")
    model = deepcopy(model).eval().requires_grad_(False)
    model.static_shapes = True
    images, proposals = example_batch(model)
    inputs: list[Tensor] = [images.pixels, images.sizes]
    dynamic: list[tuple[int, ...]] = [(2, 3), ()]
    if proposals is not None:
        inputs += [proposals.boxes, proposals.valid]
        dynamic += [(1,), (1,)]
    if batch is None:
        dynamic = [(0, *axes) for axes in dynamic]
    with torch.no_grad():
        return torch.export.export(
            Inference(model),
            tuple(x[:batch] for x in inputs),
            dynamic_shapes=tuple(dict.fromkeys(axes, Dim.AUTO) for axes in dynamic),
        )
