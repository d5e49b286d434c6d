"""Base class of the models: lists of images in, losses or lists of dicts out.

Shapes: B images; G ground truths, P proposals, N predicted boxes, D detections per image, padded.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from detlite.conventions import Convention
from detlite.structures import on_cpu_by_default
from detlite.structures.instances import Detections, GroundTruth, Images, PredictedBoxes, Proposals
from detlite.structures.masks.pasting import paste_boxes, paste_probabilities

from .backbone import Backbone
from .input_checks import check_images
from .postprocessing import Postprocess
from .preprocessing import NO_META_DEVICE, Normalizer, prepare_proposals, prepare_targets
from .roi_heads.roi_heads import RoIHeads

M = TypeVar("M", bound=nn.Module)


class DetectionModel(nn.Module, ABC):
    """Checks, normalizes and batches the inputs of a model. Implements `Detector`.

    Subclasses compute `losses` and `predict` from padded records (`detlite.structures.instances`).

    Attributes:
        num_classes: including background, which is class 0.
        categories: see `Detector`; empty until training or a checkpoint sets them.
        required_targets: fields that targets must have besides `boxes` and `labels`.
        roi_heads: only of two-stage models.
        extra_outputs: fields of detections that TEST.EXTRA_OUTPUTS adds, of `supported_outputs`.
        static_shapes: no shape depends on a value: padding is computed too. Set it before
            torch.compile and torch.export; `optimize_for_training` sets it on GPUs.
        is_optimized: a copy of `detlite.optimize`, which only detects.
        reads_foreground: with static shapes, the mask and keypoint heads are trained on little more
            than the foreground samples, whose number is read from the device in each step.
    """

    roi_heads: RoIHeads
    extra_outputs: tuple[str, ...] = ()
    supported_outputs: tuple[str, ...] = ()
    required_targets: tuple[str, ...] = ()
    takes_proposals = False
    resizes_images = False
    static_shapes = False
    is_optimized = False
    reads_foreground = False

    def __init__(
        self,
        normalizer: Normalizer,
        backbone: Backbone,
        postprocess: Postprocess,
        num_classes: int,
        mask_threshold: float = 0.5,
    ) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.backbone = backbone
        self.postprocess = postprocess
        self.num_classes = num_classes
        self.mask_threshold = mask_threshold
        self.categories: list[dict[str, Any]] = []

    @abstractmethod
    def losses(
        self, images: Images, truth: GroundTruth, proposals: Proposals | None = None
    ) -> dict[str, Tensor]:
        """Compute the scalar losses of a batch; `proposals` are None if the model has an RPN."""

    @abstractmethod
    def predict_boxes(
        self, features: list[Tensor], images: Images, proposals: Proposals | None = None
    ) -> PredictedBoxes:
        """Predict scored boxes [B, N], before any are suppressed."""

    def predict(
        self, images: Images, proposals: Proposals | None = None, min_score: float = 0.0
    ) -> Detections:
        """Predict detections [B, D] in pixels of the network input.

        Those with a score below `min_score` are dropped before masks and keypoints are predicted.
        """
        features = self.backbone(images.pixels)
        predicted = self.predict_boxes(features, images, proposals)
        return self.postprocess(predicted, images.sizes, self.static_shapes, min_score)

    def training_parts(self) -> Sequence[tuple[nn.Module, str]]:
        """Return the modules and their methods that `losses` consists of, for compilation."""
        return [(self, "losses")]

    def use_memory_format(self) -> None:
        """Convert the weights to MODEL.MEMORY_FORMAT. Images and maps follow the weights."""
        if self.normalizer.channels_last:
            self.to(memory_format=torch.channels_last)

    def train(self, mode: bool = True) -> DetectionModel:
        if mode:
            self._check_plain("be trained")
        return super().train(mode)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self._check_plain("be saved as a state dict")
        return super().state_dict(*args, **kwargs)

    def _check_plain(self, action: str) -> None:
        """Raise a RuntimeError if this is an optimized copy."""
        if self.is_optimized:
            raise RuntimeError(
                f"the model is a copy that detlite.optimize made for inference, and cannot {action}"
                ": use the original model; that of a file is load_checkpoint(file).model"
            )

    def _apply(self, fn: Any, recurse: bool = True) -> DetectionModel:
        self._check_plain("be moved or converted")
        on_meta = self.device.type == "meta"
        try:
            super()._apply(fn, recurse)
        except NotImplementedError as error:  # torch's, for `to` from the meta device
            raise RuntimeError(NO_META_DEVICE) from error
        if on_meta and self.device.type != "meta":
            raise RuntimeError(NO_META_DEVICE)
        return self

    @property
    def convention(self) -> Convention:
        """See `Detector`."""
        return self.postprocess.convention

    @property
    def channels(self) -> int:
        """See `Detector`."""
        return self.normalizer.channels

    @property
    def device(self) -> torch.device:
        """See `Detector`."""
        return self.normalizer.pixel_mean.device

    @on_cpu_by_default
    def forward(self, images: Any, targets: Any = None) -> Any:
        """Return losses in training, detections in evaluation, like torchvision's detectors.

        Args:
            images: a list of RGB tensors [3, H, W], uint8 in 0..255 or float in 0..1, of any sizes;
                or a single one.
            targets: in training, a dict for each image, or a single one, with `boxes` float [G, 4]
                (xyxy in pixels), `labels` [G] in 1..num_classes - 1 and, for models with such a
                head, `masks` (`PackedMasks`, or bitmaps uint8 [G, H, W]), `keypoints` float
                [G, K, 3] of (x, y, visibility), and own fields (`OBJECT_FIELDS`). For models
                without an RPN also `proposals` float [P, 4] xyxy, in evaluation too. Targets are
                checked on the CPU, so leave them there.

        Returns:
            In training a dict of scalar losses. In evaluation a dict for each image with `boxes`
            float32 [D, 4], `scores` [D] in decreasing order, `labels` [D], and if predicted `masks`
            float32 [D, 1, H, W] (probabilities), `keypoints` float32 [D, K, 3] of (x, y, 1), their
            logits `keypoints_scores` [D, K], the outputs of TEST.EXTRA_OUTPUTS and own fields.

        Raises:
            TypeError, ValueError: images or targets that do not match this description.
        """
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(
                "torch.func (grad, vjp, vmap) does not support the compiled operators of detection "
                "models: use torch.autograd.grad"
            )
        images = [images] if isinstance(images, Tensor) and images.ndim == 3 else images
        targets = [targets] if isinstance(targets, dict) else targets
        proposals = None
        if targets is not None and self.takes_proposals:
            proposals = [target.get("proposals") for target in targets]
        if not self.training:
            if torch.compiler.is_exporting() and not self.static_shapes:
                raise RuntimeError("torch.export needs model.static_shapes = True")
            detections = self.predict(*self.prepare(images, proposals)).per_image()
            return [self._as_dict(*pair) for pair in zip(detections, images, strict=True)]
        check_images(images, self.channels)  # all checks come before the first copy to the device
        soft_masks, dtype = self.convention.mask_targets == "soft", self.normalizer.dtype
        truth = prepare_targets(
            targets, images, self.num_classes, self.required_targets, soft_masks, dtype
        )
        batch, padded_proposals = self.prepare(images, proposals)
        return self.losses(batch, truth.to(self.device), padded_proposals)

    def prepare(
        self, images: Sequence[Tensor], proposals: Sequence[Tensor | None] | None = None
    ) -> tuple[Images, Proposals | None]:
        """Convert the arguments of `detect` to padded records on the device of the model."""
        if proposals is not None and not self.takes_proposals:
            raise ValueError(
                "proposals are given, but the model predicts its own: set MODEL.LOAD_PROPOSALS for "
                "a Fast R-CNN, which needs proposals"
            )
        if any(image.requires_grad for image in images if isinstance(image, Tensor)):
            self._check_plain("compute gradients of images")
        batch = self.normalizer(images)
        if not self.takes_proposals:
            return batch, None
        padded = prepare_proposals(proposals, len(images), self.normalizer.dtype)
        return batch, padded.to(self.device)

    @on_cpu_by_default
    @torch.no_grad()  # `forward` computes gradients, for example for saliency maps
    def detect(
        self,
        images: Sequence[Tensor],
        proposals: Sequence[Tensor | None] | None = None,
        min_score: float = 0.0,
    ) -> list[Detections]:
        """Return the detections of each image, masks not pasted; see `Detector.detect`."""
        if self.training:
            raise RuntimeError("the model is in training mode: call model.eval() first")
        return self.predict(*self.prepare(images, proposals), min_score).per_image()

    def _as_dict(self, detections: Detections, image: Tensor) -> dict[str, Tensor]:
        """Convert the detections of an image to torchvision's dict."""
        result = detections.public_fields()
        if (probs := detections.mask_probs) is not None:
            height, width = image.shape[-2:]
            covered = paste_boxes(detections.pasting_boxes, probs.shape[-1], self.convention)
            result["masks"] = paste_probabilities(probs, covered, (height, width))[:, None]
        return result


def shallow_copy(module: M) -> M:
    """Return a copy with the same children, which can be replaced in the copy only."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied
