"""Where the time of a step goes: functions of a library are watched from outside."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from torch.autograd.profiler import record_function
from torchvision.models.detection import mask_rcnn, roi_heads, rpn, transform
from torchvision.models.detection.backbone_utils import BackboneWithFPN

from benchmarks.operators.case import Clock
from benchmarks.roofline import synchronize
from detlite.conventions import Convention
from detlite.modeling import backbone
from detlite.modeling import detection_model as detector
from detlite.modeling import sampler as sampling
from detlite.modeling.roi_heads import box_head, mask_head
from detlite.modeling.roi_heads import roi_heads as heads
from detlite.modeling.rpn import rpn as proposals

# A phase, and what is watched for it: (owner, name of a function or method).
Places = Sequence[tuple[str, Any, str]]

_DETLITE: Places = (
    ("inputs", detector.DetectionModel, "prepare"),
    ("inputs", detector, "prepare_targets"),
    ("backbone", backbone.Backbone, "forward"),
    ("RPN", proposals.RPN, "forward"),
    ("RPN", proposals.RPN, "losses"),
    ("proposals", proposals.RPN, "propose"),
    ("matching", sampling.Matcher, "__call__"),
    ("matching", sampling.Sampler, "draw"),
    ("matching", sampling.ProposalSampler, "__call__"),
    ("box head", box_head.BoxHead, "losses"),
    ("box head", box_head.BoxHead, "predict"),
    ("postprocess", detector.Postprocess, "__call__"),
    ("mask head", heads.RoIHeads, "dense_losses"),
    ("mask head", heads.RoIHeads, "maps"),
    ("mask targets", mask_head, "crop_masks"),
    ("paste", Convention, "paste_rle"),
)
_TORCHVISION: Places = (
    ("inputs", transform.GeneralizedRCNNTransform, "forward"),
    ("backbone", BackboneWithFPN, "forward"),
    ("RPN", rpn.RegionProposalNetwork, "forward"),
    ("proposals", rpn.RegionProposalNetwork, "filter_proposals"),
    ("matching", rpn.RegionProposalNetwork, "assign_targets_to_anchors"),
    ("matching", roi_heads.RoIHeads, "select_training_samples"),
    ("box head", roi_heads.RoIHeads, "forward"),  # and the pooling of the mask head
    ("postprocess", roi_heads.RoIHeads, "postprocess_detections"),
    ("mask head", mask_rcnn.MaskRCNNHeads, "forward"),
    ("mask head", mask_rcnn.MaskRCNNPredictor, "forward"),
    ("mask head", roi_heads, "maskrcnn_loss"),
    ("mask targets", roi_heads, "project_masks_on_boxes"),
    ("paste", transform.GeneralizedRCNNTransform, "postprocess"),
)


def places_of(library: str) -> Places:
    """What is watched in the calls of detlite, torchvision or detectron2."""
    if library == "detectron2":
        return _detectron2()
    return _TORCHVISION if library == "torchvision" else _DETLITE


def _detectron2() -> Places:
    from detectron2.modeling import backbone, meta_arch, proposal_generator, roi_heads
    from detectron2.structures import BitMasks

    return (
        ("inputs", meta_arch.GeneralizedRCNN, "preprocess_image"),
        ("backbone", backbone.FPN, "forward"),
        ("RPN", proposal_generator.RPN, "forward"),
        ("proposals", proposal_generator.RPN, "predict_proposals"),
        ("matching", proposal_generator.RPN, "label_and_sample_anchors"),
        ("matching", roi_heads.StandardROIHeads, "label_and_sample_proposals"),
        ("box head", roi_heads.StandardROIHeads, "_forward_box"),
        ("mask head", roi_heads.StandardROIHeads, "_forward_mask"),
        ("mask targets", BitMasks, "crop_and_resize"),
        ("paste", meta_arch.GeneralizedRCNN, "_postprocess"),
    )


class Stopwatch:
    """Seconds by phase. A phase inside another one counts for itself alone.

    On a GPU it waits at every border of a phase.
    """

    def __init__(self, device: str, clock: Clock = time.perf_counter) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._device = device
        self._clock = clock
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """All that happens inside, unless it is a phase of its own."""
        self._lap()
        self._open.append(name)
        try:
            with record_function(name):
                yield
        finally:
            self._lap()
            self._open.pop()

    def _lap(self) -> None:
        synchronize(self._device)
        now = self._clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def watching(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as a phase."""

        @wraps(function)
        def watched(*args: Any, **options: Any) -> Any:
            with self.phase(name):
                return function(*args, **options)

        return watched


@contextmanager
def watched(places: Places, watch: Stopwatch) -> Iterator[None]:
    """Calls of `places` are phases, meanwhile."""
    with ExitStack() as stack:
        for name, owner, attribute in places:
            function = watch.watching(name, getattr(owner, attribute))
            stack.enter_context(patch.object(owner, attribute, function))
        yield


def phases_of(
    run: Callable[[], object], places: Places, watch: Stopwatch, count: int
) -> dict[str, float]:
    """Milliseconds of the phases of a call, the mean of `count` calls."""
    watch.seconds.clear()
    with watched(places, watch):
        for _ in range(count):
            run()
    return {name: 1e3 * seconds / count for name, seconds in watch.seconds.items()}
