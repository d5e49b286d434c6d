"""Feature distillation (FitNets, https://arxiv.org/abs/1412.6550) of a detector's pyramid.

The levels of a small detector imitate those of a trained teacher. Shapes: B images, C channels.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

import detlite
from detlite.config import Key, declare_keys, not_negative, positive
from detlite.modeling import META_ARCHITECTURES, GeneralizedRCNN, build_generalized_rcnn
from detlite.structures.instances import GroundTruth, Images, Proposals, Samples

declare_keys(
    "MODEL.DISTILLATION",
    {
        Key("TEACHER", ""): "checkpoint of a detector with the same levels and normalization",
        Key("CHANNELS", 256, positive): "channels of the teacher's levels",
        Key("WEIGHT", 1.0, not_negative): "weight of loss_distillation",
    },
)


class DistilledRCNN(GeneralizedRCNN):
    """A detector that learns from the ground truth and from the levels of a teacher.

    The teacher is loaded in the first training step. It is no part of the model, so that neither
    prediction nor a checkpoint needs it.
    """

    def __init__(
        self, *args: Any, teacher: str, channels: int, weight: float, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        width, levels = self.backbone.out_channels, len(self.backbone.strides)
        self.adapters = nn.ModuleList(nn.Conv2d(width, channels, 1) for _ in range(levels))
        self.teacher_file, self.weight = teacher, weight
        self.teachers: list[nn.Module] = []  # a list is no submodule

    def sampling_losses(
        self, images: Images, truth: GroundTruth, proposals: Proposals | None
    ) -> tuple[dict[str, Tensor], list[Tensor], Samples]:
        """Add `loss_distillation`: the mean squared difference of normalized levels."""
        losses, features, samples = super().sampling_losses(images, truth, proposals)
        with torch.no_grad():
            expected = self.teacher()(images.pixels)
        distances = [
            F.mse_loss(normalize(adapt(level)), normalize(wanted))
            for adapt, level, wanted in zip(self.adapters, features, expected, strict=True)
        ]
        losses["loss_distillation"] = self.weight * torch.stack(distances).mean()
        return losses, features, samples

    @torch.compiler.disable  # reading a file is not compiled
    def teacher(self) -> nn.Module:
        """Return the backbone of the teacher."""
        if not self.teachers:
            model = detlite.load_checkpoint(self.teacher_file).model
            self.teachers = [model.backbone.eval().requires_grad_(False).to(self.device)]
        return self.teachers[0]


def normalize(level: Tensor) -> Tensor:
    """Scale a level [B, C, H, W] to mean 0 and variance 1 per channel."""
    return F.batch_norm(level.float(), None, None, training=True)


@META_ARCHITECTURES.register("DistilledRCNN")
def build_distilled_rcnn(cfg: CfgNode) -> GeneralizedRCNN:
    """Build the detector of the config with a teacher."""
    node = cfg.MODEL.DISTILLATION
    options = {"teacher": node.TEACHER, "channels": node.CHANNELS, "weight": node.WEIGHT}
    return build_generalized_rcnn(cfg, partial(DistilledRCNN, **options))
