"""What every detector shares: the public edge, lists of images in, losses or lists of dicts out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from detlite.conventions import Convention
from detlite.structures.instances import Detections, GroundTruth, Images, PredictedBoxes, Proposals
from detlite.structures.masks.pasting import paste_boxes, paste_probabilities
from detlite.structures.padding import varying_shapes

from .backbone import Backbone
from .input_checks import check_images
from .postprocessing import Postprocess
from .preprocessing import Normalizer, prepare_proposals, prepare_targets
from .roi_heads.roi_heads import RoIHeads


class DetectionModel(nn.Module, ABC):
    """Checks and batches what a model is given. `losses` and `predict` are the model itself:
    records in, records out, of fixed shapes, so that torch.compile and torch.export take them.

    Attributes:
        postprocess: which predicted boxes become detections.
        convention: how boxes are counted, clipped, scaled and pasted.
        num_classes: with background, which is 0.
        mask_threshold: the probability from which a pixel belongs to a mask.
        categories: the data set's categories [{"id": 7, "name": "cell"}, ...]; label k is
            categories[k - 1]. Empty until training or a checkpoint sets it.
        needs: what targets must hold beside `boxes` and `labels`.
        takes_proposals: whether proposals must be given with each image.
        roi_heads: of a model that needs masks or keypoints; others may have none.
    """

    roi_heads: RoIHeads
    needs: tuple[str, ...] = ()
    takes_proposals = False

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
        self, images: Images, truth: GroundTruth, given: Proposals | None = None
    ) -> dict[str, Tensor]:
        """Scalar losses of a batch.

        Args:
            images: [B, 3, H, W].
            truth: [B, G].
            given: of a model that takes proposals, [B, P].
        """

    def predict(
        self, images: Images, given: Proposals | None = None, min_score: float = 0.0
    ) -> Detections:
        """Detections [B, D] in the frame of the network's input.

        Args:
            images, given: as for `losses`.
            min_score: detections that score less are left out before masks and keypoints are
                looked for.
        """
        features = self.backbone(images.pixels)
        predicted = self.predict_boxes(features, images, given)
        return self.postprocess(predicted, images.sizes, min_score)

    @abstractmethod
    def predict_boxes(
        self, features: list[Tensor], images: Images, given: Proposals | None = None
    ) -> PredictedBoxes:
        """Scored boxes [B, N] before any is suppressed.

        Args:
            features: the backbone's levels [B, C, H_l, W_l].
            images, given: as for `losses`.
        """

    @property
    def convention(self) -> Convention:
        """That of `postprocess`."""
        return self.postprocess.convention

    @property
    def device(self) -> torch.device:
        """Where the model's inputs are moved to."""
        return self.normalizer.pixel_mean.device

    def forward(
        self, images: Sequence[Tensor], targets: Sequence[dict[str, Any]] | None = None
    ) -> Any:
        """Losses in training, detections otherwise, as torchvision's detectors.

        Args:
            images: list of RGB tensors [3, H, W], uint8 in 0..255 or float in 0..1, of any sizes.
            targets: in training, for each image a dict of `boxes` float [G, 4] (xyxy in pixels),
                `labels` int64 [G] in 1..num_classes - 1 and, with such a head, `masks`
                (`PackedMasks`, or bitmaps uint8 [G, H, W]) and `keypoints` float [G, K, 3] of
                (x, y, visibility). Of a model that takes proposals also `proposals` float [P, 4]
                xyxy, and these in eval mode too. They are checked on the CPU: leave them there.

        Returns:
            In training a dict of scalar losses, which each model names.
            In eval mode for each image a dict of `boxes` float32 [D, 4], `scores` [D] in
            decreasing order, `labels` [D] and, with such a head, `masks` float32 [D, 1, H, W],
            probabilities, or `keypoints` float32 [D, K, 3] of (x, y, 1) and their logits
            `keypoints_scores` [D, K].

        Raises:
            TypeError, ValueError: images or targets that do not fit this description.
        """
        given = None
        if targets is not None and self.takes_proposals:
            given = [target.get("proposals") for target in targets]
        if self.training:
            check_images(images)  # all checks come before the first copy to the device
            soft = self.convention.mask_targets == "soft"
            truth = prepare_targets(
                targets, images, self.num_classes, self.needs, soft, self.normalizer.dtype
            )
            batch, proposals = self.prepare(images, given)
            return self.losses(batch, truth.to(self.device, non_blocking=True), proposals)
        detections = self.detect(images, given)
        return [self._as_dict(*pair) for pair in zip(detections, images, strict=True)]

    def prepare(
        self, images: Sequence[Tensor], given: Sequence[Tensor | None] | None = None
    ) -> tuple[Images, Proposals | None]:
        """Images as the network sees them, with the proposals given for them.

        Args:
            images: as in `forward`.
            given: of a model that takes them, and of no other: float xyxy [P_i, 4] in each.

        Raises:
            TypeError, ValueError: images or proposals that do not fit this description.
        """
        if given is not None and not self.takes_proposals:
            raise ValueError(
                "proposals are given, but the model finds its own; a Fast R-CNN takes them: "
                "MODEL.LOAD_PROPOSALS"
            )
        batch = self.normalizer(images)
        if not self.takes_proposals:
            return batch, None
        proposals = prepare_proposals(given, len(images), self.normalizer.dtype)
        return batch, proposals.to(self.device, non_blocking=True)

    @torch.no_grad()
    def detect(
        self,
        images: Sequence[Tensor],
        given: Sequence[Tensor | None] | None = None,
        min_score: float = 0.0,
    ) -> list[Detections]:
        """Each image's detections in its own frame, without padding; masks are not pasted.

        Those that score less than `min_score` are left out.

        Raises:
            RuntimeError: the model is in training mode.
            TypeError, ValueError: images or proposals that do not fit, see `prepare`.
        """
        if self.training:
            raise RuntimeError("the model is in training mode: call model.eval() first")
        with varying_shapes():
            return self.predict(*self.prepare(images, given), min_score).per_image()

    def _as_dict(self, found: Detections, image: Tensor) -> dict[str, Tensor]:
        """One image's detections without padding, by torchvision's names."""
        result = {"boxes": found.boxes, "scores": found.scores, "labels": found.labels}
        if found.mask_probs is not None:
            size = (image.shape[-2], image.shape[-1])
            masks = paste_probabilities(
                found.mask_probs,
                paste_boxes(found.boxes, found.mask_probs.shape[-1], self.convention),
                size,
            )
            result["masks"] = masks[:, None]
        if found.keypoints is not None and found.keypoint_scores is not None:
            result |= {"keypoints": found.keypoints, "keypoints_scores": found.keypoint_scores}
        return result
