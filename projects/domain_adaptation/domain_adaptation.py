"""Domain adaptation by gradient reversal (Ganin et al., https://arxiv.org/abs/1409.7495).

A classifier learns to tell labeled images from unlabeled ones of another domain by the feature maps
of the backbone, which learns the opposite. Shapes: B images, G ground truths, C channels.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.data import DATASETS
from detlite.data.datasets.catalog import check_fields, converted_file
from detlite.modeling import (
    META_ARCHITECTURES,
    GeneralizedRCNN,
    build_generalized_rcnn,
    conv_block,
)
from detlite.structures.instances import GroundTruth, Images, Proposals, Samples

WEIGHT = 0.1  # of the loss, and so of the reversed gradient


class ReverseGradient(torch.autograd.Function):
    """Returns the input, and the negative gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -gradients[0]


class DomainAdaptiveRCNN(GeneralizedRCNN):
    """A detector that is also trained on images without objects, as those of the other domain."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        channels = self.backbone.out_channels
        hidden = conv_block(channels, channels, 1, relu=True)
        self.domain = nn.Sequential(hidden, nn.Conv2d(channels, 1, 1))

    def losses(
        self, images: Images, truth: GroundTruth, proposals: Proposals | None = None
    ) -> dict[str, Tensor]:
        """Compute the losses of a detector, and `loss_domain`.

        An unlabeled image is one region to ignore, so that it is not trained on as background.
        """
        whole = torch.cat([torch.zeros_like(images.sizes), images.sizes.flip(1)], dim=1)
        whole = torch.where(_is_unlabeled(truth)[:, None], whole, 0).to(truth.boxes)[:, None]
        ignored = whole if truth.ignored is None else torch.cat([truth.ignored, whole], dim=1)
        return super().losses(images, replace(truth, ignored=ignored), proposals)

    def sampling_losses(
        self, images: Images, truth: GroundTruth, proposals: Proposals | None
    ) -> tuple[dict[str, Tensor], list[Tensor], Samples]:
        """Add `loss_domain`: the cross entropy of the domain, the mean over cells and levels."""
        losses, features, samples = super().sampling_losses(images, truth, proposals)
        domain = _is_unlabeled(truth).float()[:, None, None, None]
        levels = []
        for level in features[: self.backbone.pooled]:
            logits = self.domain(ReverseGradient.apply(level)).float()
            target = domain.expand_as(logits)
            levels.append(F.binary_cross_entropy_with_logits(logits, target))
        losses["loss_domain"] = WEIGHT * torch.stack(levels).mean()
        return losses, features, samples


def _is_unlabeled(truth: GroundTruth) -> Tensor:
    """Return bool [B], True for images without objects."""
    return ~truth.valid.any(dim=1)


@META_ARCHITECTURES.register("DomainAdaptiveRCNN")
def build_domain_adaptive_rcnn(cfg: CfgNode) -> GeneralizedRCNN:
    """Build the detector of the config with a domain classifier."""
    return build_generalized_rcnn(cfg, DomainAdaptiveRCNN)


@DATASETS.register("unlabeled")
def unlabeled_files(entry: dict[str, Any], root: Path) -> tuple[Path, Path]:
    """`{name, annotations: file, images: folder}`: a COCO file without its annotations."""
    check_fields(entry, {"annotations": str, "images": str})
    source = root / entry["annotations"]

    def without_objects() -> dict[str, Any]:
        return {**json.loads(source.read_text(encoding="utf-8")), "annotations": []}

    return converted_file(root, entry["name"], without_objects), root / entry["images"]
