"""Export whole detectors with torch.export, from padded pixels to detections.

Shapes: B images of H x W pixels, each with P proposals and D detections, including padding.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F

from detlite.errors import CheckpointError
from detlite.inference.build import model_score_thresh
from detlite.modeling.detection_model import DetectionModel
from detlite.structures.instances import Detections, Images, Proposals

# Arguments: pixels float32 [B, C, H, W], sizes int64 [B, 2], and for Fast R-CNN proposals float32
# [B, P, 4] and their validity bool [B, P]. Returns the fields of `Detections` that are not None.
Run = Callable[..., list[Tensor]]
Open = Callable[[Path], tuple[str, Run]]
ALIGNMENT = 32  # pixels; graphs accept images with sides that are multiples of this


class Inference(nn.Module):
    """`DetectionModel.predict` with tensors instead of records, with the signature `Run`."""

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
        named = detections.named_fields()
        return tuple(named[name] for name in output_names(self.model))


def output_names(model: DetectionModel) -> list[str]:
    """Return the fields of `Detections` that a model predicts."""
    heads = model.roi_heads.predicted if hasattr(model, "roi_heads") else ()
    names = ("boxes", "scores", "labels", "valid", *model.extra_outputs, *heads)
    return [*dict.fromkeys(names)]


class ProgramDetector(DetectionModel):
    """A detector whose `predict` runs an exported program; it cannot be trained.

    Args:
        model: the exported model; its weights are not used.
        run: the program.
        source: (function, file): `function(file)` returns `(metadata, run)`. Copies of the
            detector, for example in other processes, cannot contain the program and read it again.
    """

    def __init__(
        self, model: DetectionModel, run: Run, source: tuple[Open, Path] | None = None
    ) -> None:
        parts = model.normalizer, model.backbone, model.postprocess
        super().__init__(*parts, model.num_classes, model.mask_threshold)
        del self.backbone
        self.min_image_side = model.backbone.min_image_side
        self.required_targets = model.required_targets
        self.outputs = output_names(model)
        self.takes_proposals = model.takes_proposals
        self.categories = model.categories
        self.score_thresh = model_score_thresh(model)
        self.run = run
        self._source = source
        self.eval()

    def __getstate__(self) -> dict[str, Any]:
        if self._source is None:
            raise TypeError("a program that was not read from a file cannot be copied or pickled")
        return {name: value for name, value in vars(self).items() if name != "run"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        read, path = state["_source"]
        if not path.is_file():
            raise CheckpointError(f"{path}: this file of the exported model was moved or removed")
        self.run = read(path)[1]

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
        named = dict(zip(self.outputs, self.run(*inputs), strict=True))
        boxes, scores, labels, valid = map(named.pop, ("boxes", "scores", "labels", "valid"))
        detections = Detections(boxes, scores, labels, valid).with_fields(named)
        return replace(detections, valid=detections.valid & (detections.scores >= min_score))

    def losses(self, *_: Any, **__: Any) -> Any:
        """Raise a RuntimeError: a program has neither gradients nor parts."""
        raise RuntimeError("an exported program only predicts: load the checkpoint instead")

    predict_boxes = losses


def example_batch(model: DetectionModel) -> tuple[Images, Proposals | None]:
    """Return two images, and proposals if the model needs them, for tracing a model.

    No dynamic dimension is 1. The number of proposals is the maximum number of detections, because
    a graph traced with fewer proposals would return fewer detections.
    """
    proposals, side = None, max(256, model.backbone.min_image_side)
    if model.takes_proposals:
        count = max(2, model.postprocess.detections_per_image)
        proposals = [torch.tensor([8.0, 8.0, 90.0, 70.0]).repeat(count, 1)] * 2
    images = [torch.rand(model.channels, *size) for size in ((side, side + 64), (side - 32, side))]
    return model.prepare(images, proposals)


def export_program(model: DetectionModel) -> ExportedProgram:
    """Export a copy of a detector as a graph that contains detlite's operators.

    The number of images is dynamic. Height and width may be any multiples of ALIGNMENT that are at
    least `Backbone.min_image_side`, and the number of proposals must be at least the maximum number
    of detections.
    """
    model = deepcopy(model).eval().requires_grad_(False)
    model.use_memory_format()
    model.static_shapes = True
    images, proposals = example_batch(model)
    inputs: tuple[Tensor, ...] = images.pixels, images.sizes
    axes: tuple[tuple[int, ...], ...] = (0, 2, 3), (0,)
    if proposals is not None:
        inputs, axes = (*inputs, proposals.boxes, proposals.valid), (*axes, (0, 1), (0, 1))
    dynamic = [dict.fromkeys(dims, Dim.AUTO) for dims in axes]
    # As multiples, the lengths of the feature maps are products instead of nested divisions.
    smallest = math.ceil(model.backbone.min_image_side / ALIGNMENT)
    for axis, name in ((2, "height"), (3, "width")):
        dynamic[0][axis] = ALIGNMENT * Dim(f"{name}_over_{ALIGNMENT}", min=smallest)
    with torch.no_grad():
        return torch.export.export(Inference(model), inputs, dynamic_shapes=tuple(dynamic))
