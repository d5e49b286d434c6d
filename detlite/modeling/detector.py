"""What every detector shares: images in, losses or detections out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..structures.image_batch import ImageBatch
from ..structures.output import OutputRules
from .backbone import Backbone
from .inputs import InputNormalizer, prepare_proposals, prepare_targets
from .suppression import DetectionLimits, Scored, suppress


class Detector(nn.Module, ABC):
    """Batches and checks what a model is given; `losses` and `candidates` are the model itself.

    Attributes:
        limits: which candidates become detections.
        num_classes: with background, which is 0.
        categories: the data set's categories [{"id": 7, "name": "cell"}, ...]; label k is
            categories[k - 1]. Empty until training or a checkpoint sets it.
        output: how detections are mapped from the network's input to a picture.
        needs: what targets must hold beside `boxes` and `labels`.
        takes_proposals: whether regions must be given with each image.
    """

    needs: tuple[str, ...] = ()
    takes_proposals = False

    def __init__(
        self,
        normalizer: InputNormalizer,
        backbone: Backbone,
        *,
        num_classes: int,
        limits: DetectionLimits,
        output: OutputRules,
    ) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.backbone = backbone
        self.limits = limits
        self.num_classes = num_classes
        self.output = output
        self.categories: list[dict[str, Any]] = []

    @abstractmethod
    def losses(self, batch: ImageBatch, targets: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Scalar losses of a batch with its checked targets."""

    @abstractmethod
    def candidates(self, features: list[Tensor], batch: ImageBatch) -> list[Scored]:
        """Scored boxes of each image of a batch, before any is suppressed.

        Args:
            features: the backbone's levels [B, C, H_l, W_l] of the batch.
            batch: the images.

        Returns:
            For each image `boxes` float32 [N, 4] xyxy, `scores` [N] and `labels` [N].
        """

    def region_maps(
        self, features: list[Tensor], boxes: list[Tensor], labels: list[Tensor]
    ) -> list[dict[str, Tensor]]:
        """What further heads see in given boxes; nothing where there are none.

        Args:
            features: the backbone's levels [B, C, H_l, W_l].
            boxes: for each image xyxy [D_i, 4].
            labels: for each image [D_i].

        Returns:
            For each image, with such a head, `mask_probs` float32 [D_i, M, M] and
            `keypoint_logits` float32 [D_i, P, M, M].
        """
        return [{} for _ in boxes]

    def complete(self, detection: Scored, maps: dict[str, Tensor]) -> dict[str, Tensor]:
        """One image's detections with what its `region_maps` say about them."""
        return {**detection, **maps}

    @property
    def device(self) -> torch.device:
        """Where the model's inputs are moved to."""
        return self.normalizer.pixel_mean.device

    def forward(
        self, images: Sequence[Tensor], targets: Sequence[dict[str, Any]] | None = None
    ) -> Any:
        """Losses in training, detections otherwise.

        Args:
            images: list of RGB tensors [3, H, W], uint8 in 0..255 or float in 0..1, of any sizes.
            targets: in training, for each image a dict of `boxes` float [G, 4] (xyxy in pixels),
                `labels` int64 [G] in 1..num_classes - 1 and, with such a head, `masks` uint8
                [G, H, W] and `keypoints` float [G, P, 3] of (x, y, visibility). Of a model that
                takes proposals also `proposals` float [R, 4] xyxy, and these in eval mode too.

        Returns:
            In training a dict of scalar losses, which each model names.
            In eval mode for each image a dict of `boxes` float32 [D, 4], `scores` [D] in
            decreasing order, `labels` [D] and, with such a head, `masks` float32 [D, 1, H, W],
            probabilities, or `keypoints` float32 [D, P, 3] of (x, y, 1) and their logits
            `keypoints_scores` [D, P].

        Raises:
            TypeError, ValueError: images or targets that do not fit this description.
        """
        given = None
        if targets is not None and self.takes_proposals:
            given = [target.get("proposals") for target in targets]
        if self.training:
            batch = self.batch(images, given)
            truth = prepare_targets(
                targets,
                images,
                self.num_classes,
                self.device,
                self.needs,
                dtype=batch.tensor.dtype,
            )
            return self.losses(batch, truth)
        detections = self.detect(images, given)
        for detection, image in zip(detections, images, strict=True):
            if "mask_probs" in detection:
                size = (image.shape[-2], image.shape[-1])
                probs = detection.pop("mask_probs")
                pasted = self.output.mask_probs(probs, detection["boxes"], size)
                detection["masks"] = pasted[:, None]
        return detections

    def batch(
        self, images: Sequence[Tensor], proposals: Sequence[Tensor | None] | None = None
    ) -> ImageBatch:
        """Images as the network sees them, with the regions given for them.

        Args:
            images: as in `forward`.
            proposals: of a model that takes them, and of no other: float xyxy [R_i, 4] in each.

        Raises:
            TypeError, ValueError: images or proposals that do not fit this description.
        """
        batch = self.normalizer(images)
        if not self.takes_proposals:
            if proposals is not None:
                raise ValueError(
                    "proposals are given, but the model finds its regions itself; a Fast R-CNN "
                    "takes them: MODEL.LOAD_PROPOSALS"
                )
            return batch
        given = prepare_proposals(proposals, len(images), self.device, batch.tensor.dtype)
        return replace(batch, proposals=given)

    @torch.no_grad()
    def detect(
        self, images: Sequence[Tensor], proposals: Sequence[Tensor | None] | None = None
    ) -> list[dict[str, Tensor]]:
        """Detections before their masks are pasted: the compact form.

        Args:
            images, proposals: see `batch`.

        Returns:
            For each image `boxes`, `scores`, `labels` and keypoints as in `forward` and, with a
            mask head, `mask_probs` float32 [D, M, M], the mask of each box.

        Raises:
            RuntimeError: the model is in training mode.
            TypeError, ValueError: images or proposals that do not fit the description in `batch`.
        """
        if self.training:
            raise RuntimeError("the model is in training mode: call model.eval() first")
        batch = self.batch(images, proposals)
        features = self.backbone(batch.tensor)
        found = [suppress(c, self.limits) for c in self.candidates(features, batch)]
        boxes, labels = ([own[name] for own in found] for name in ("boxes", "labels"))
        maps = self.region_maps(features, boxes, labels)
        return [self.complete(*pair) for pair in zip(found, maps, strict=True)]
