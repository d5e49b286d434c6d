"""Measure the phases of a call by wrapping functions of a library."""

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

from benchmarks.clock import Clock, synchronize
from detlite.evaluation import detection_results
from detlite.modeling import backbone
from detlite.modeling import detection_model as detector
from detlite.modeling.boxes import sampler as sampling
from detlite.modeling.roi_heads import box_head, mask_head
from detlite.modeling.roi_heads import roi_heads as heads
from detlite.modeling.rpn import rpn as proposals

# (phase, owner, name of a function or method)
PhaseFunctions = Sequence[tuple[str, Any, str]]

_DETLITE: PhaseFunctions = (
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
    ("mask head", heads.RoIHeads, "head_losses"),
    ("mask head", heads.RoIHeads, "head_outputs"),
    ("mask targets", mask_head, "crop_masks"),
    ("paste", detection_results, "paste_masks"),
)
_TORCHVISION: PhaseFunctions = (
    ("inputs", transform.GeneralizedRCNNTransform, "forward"),
    ("backbone", BackboneWithFPN, "forward"),
    ("RPN", rpn.RegionProposalNetwork, "forward"),
    ("proposals", rpn.RegionProposalNetwork, "filter_proposals"),
    ("matching", rpn.RegionProposalNetwork, "assign_targets_to_anchors"),
    ("matching", roi_heads.RoIHeads, "select_training_samples"),
    ("box head", roi_heads.RoIHeads, "forward"),  # including the pooling of the mask head
    ("postprocess", roi_heads.RoIHeads, "postprocess_detections"),
    ("mask head", mask_rcnn.MaskRCNNHeads, "forward"),
    ("mask head", mask_rcnn.MaskRCNNPredictor, "forward"),
    ("mask head", roi_heads, "maskrcnn_loss"),
    ("mask targets", roi_heads, "project_masks_on_boxes"),
    ("paste", transform.GeneralizedRCNNTransform, "postprocess"),
)


def phase_functions(library: str) -> PhaseFunctions:
    """Return the functions to measure in detlite, torchvision or detectron2."""
    if library == "detectron2":
        return _detectron2()
    return _TORCHVISION if library == "torchvision" else _DETLITE


def _detectron2() -> PhaseFunctions:
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
    """Measures the seconds of each phase, without the time of phases inside it.

    On a GPU, it synchronizes at the start and end of every phase.
    """

    def __init__(self, device: str, clock: Clock = time.perf_counter) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._device = device
        self._clock = clock
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the `with` block to a phase, except for inner phases."""
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

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose calls are a phase."""

        @wraps(function)
        def measured(*args: Any, **options: Any) -> Any:
            with self.phase(name):
                return function(*args, **options)

        return measured


@contextmanager
def watch_functions(functions: PhaseFunctions, watch: Stopwatch) -> Iterator[None]:
    """Record the calls of the functions as phases during the `with` block."""
    with ExitStack() as stack:
        for name, owner, attribute in functions:
            function = watch.wrap(name, getattr(owner, attribute))
            stack.enter_context(patch.object(owner, attribute, function))
        yield


def measure_phases(
    run: Callable[[], object], functions: PhaseFunctions, watch: Stopwatch, count: int
) -> dict[str, float]:
    """Return the milliseconds of each phase of a call, averaged over `count` calls."""
    watch.seconds.clear()
    with watch_functions(functions, watch):
        for _ in range(count):
            run()
    return {name: 1e3 * seconds / count for name, seconds in watch.seconds.items()}
