"""The detector, whole: read this file first.

images -> backbone -> RPN -> heads -> losses (training) or detections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from ..config import ConfigError
from ..config.derive import restate_strides
from ..registry import Registry
from ..structures.output import OutputRules
from .backbone import Backbone, build_backbone
from .cascade import build_roi_heads
from .inputs import InputNormalizer, prepare_targets
from .roi_heads import RoIHeads
from .rpn import RPN, build_rpn

META_ARCHITECTURES: Registry[Callable[[CfgNode], GeneralizedRCNN]] = Registry("detector")


class GeneralizedRCNN(nn.Module):
    """A two-stage detector (Mask R-CNN, https://arxiv.org/abs/1703.06870).

    Attributes:
        categories: the data set's categories [{"id": 7, "name": "cell"}, ...]; label k is
            categories[k - 1]. Empty until training or a checkpoint sets it.
        output: how detections are mapped from the network's input to a picture.
    """

    def __init__(
        self,
        normalizer: InputNormalizer,
        backbone: Backbone,
        rpn: RPN,
        roi_heads: RoIHeads,
        *,
        num_classes: int,
        output: OutputRules,
    ) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.backbone = backbone
        self.rpn = rpn
        self.roi_heads = roi_heads
        self.num_classes = num_classes
        self.output = output
        self.categories: list[dict[str, Any]] = []

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
                [G, H, W] and `keypoints` float [G, P, 3] of (x, y, visibility).

        Returns:
            In training a dict of scalar losses: `loss_objectness`, `loss_rpn_box`,
            `loss_classifier`, `loss_box` and, with such a head, `loss_mask`, `loss_keypoint`.
            In eval mode for each image a dict of `boxes` float32 [D, 4], `scores` [D] in
            decreasing order, `labels` [D] and, with such a head, `masks` float32 [D, 1, H, W],
            probabilities, or `keypoints` float32 [D, P, 3] of (x, y, 1) and their logits
            `keypoints_scores` [D, P].

        Raises:
            TypeError, ValueError: images or targets that do not fit this description.
        """
        if not self.training:
            detections = self.detect(images)
            for detection, image in zip(detections, images, strict=True):
                if "mask_probs" in detection:
                    size = (image.shape[-2], image.shape[-1])
                    probs = detection.pop("mask_probs")
                    pasted = self.output.mask_probs(probs, detection["boxes"], size)
                    detection["masks"] = pasted[:, None]
            return detections
        batch = self.normalizer(images)
        heads = self.roi_heads
        truth = prepare_targets(
            targets,
            images,
            self.num_classes,
            heads.mask is not None,
            self.device,
            need_keypoints=heads.keypoint is not None,
        )
        features = self.backbone(batch.tensor)
        proposals, losses = self.rpn(batch.sizes, features, truth)
        losses.update(self.roi_heads.losses(features, proposals, truth, batch.sizes))
        return losses

    @torch.no_grad()
    def detect(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """Detections before their masks are pasted: the compact form.

        Returns:
            For each image `boxes`, `scores`, `labels` and keypoints as in `forward` and, with a
            mask head, `mask_probs` float32 [D, M, M], the mask of each box.

        Raises:
            RuntimeError: the model is in training mode.
            TypeError, ValueError: images that do not fit the description in `forward`.
        """
        if self.training:
            raise RuntimeError("the model is in training mode: call model.eval() first")
        batch = self.normalizer(images)
        features = self.backbone(batch.tensor)
        proposals, _ = self.rpn(batch.sizes, features)
        return self.roi_heads.detect(features, proposals, batch.sizes)


@META_ARCHITECTURES.register("GeneralizedRCNN")
def _build_generalized_rcnn(cfg: CfgNode) -> GeneralizedRCNN:
    backbone = build_backbone(cfg)
    # A backbone of the user's own tells its strides only now.
    restate_strides(cfg.clone(), backbone.strides, sources={})
    return GeneralizedRCNN(
        normalizer=InputNormalizer(
            cfg.INPUT.PIXEL_MEAN,
            cfg.INPUT.PIXEL_STD,
            cfg.INPUT.TO_BGR255,
            cfg.DATALOADER.SIZE_DIVISIBILITY,
        ),
        backbone=backbone,
        rpn=build_rpn(cfg, backbone),
        roi_heads=build_roi_heads(cfg, backbone),
        num_classes=cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES,
        output=OutputRules(
            mask_threshold=cfg.MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS_THRESHOLD,
            whole_pixels=cfg.MODEL.ROI_MASK_HEAD.PASTE == "whole-pixels",
            inclusive=cfg.MODEL.INCLUSIVE_BOXES,
        ),
    )


def build_model(cfg: CfgNode) -> GeneralizedRCNN:
    """The model that a config describes, with fresh weights, on MODEL.DEVICE.

    Raises:
        ConfigError: a part that is not registered, or parts that do not fit together.
    """
    build = META_ARCHITECTURES.get(cfg.MODEL.META_ARCHITECTURE, "MODEL.META_ARCHITECTURE")
    device = torch_device(cfg.MODEL.DEVICE)
    try:
        model = build(cfg)
    except ConfigError:
        raise
    except ValueError as error:  # a module that was given arguments that do not fit
        raise ConfigError(str(error)) from error
    return model.to(device).to(memory_format=torch.channels_last)


def torch_device(name: str) -> torch.device:
    """The device called `name`; "auto" is CUDA where there is one, else the CPU.

    Raises:
        ConfigError: a name that torch does not know, or CUDA where there is none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"MODEL.DEVICE: {name!r} is not a device of torch") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"MODEL.DEVICE is {name!r}, but torch finds {torch.cuda.device_count()} CUDA "
            "devices: use auto or cpu"
        )
    return device
