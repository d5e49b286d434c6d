"""Dynamic R-CNN (Zhang et al., https://arxiv.org/abs/2004.06002).

Shapes: B images; P proposals, G ground truths and S samples per image, padded.
"""

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.distributed import mean_over_processes
from detlite.ops import match_boxes
from detlite.structures.instances import GroundTruth, Proposals, Samples
from detlite.structures.padding import gather

from .box_coder import BoxCoder
from .matcher import Matcher

_MIN_BETA = 1e-3  # the loss divides by beta


class DynamicThresholds(nn.Module):
    """IoU threshold and smooth L1 beta that follow the quality of the proposals in training.

    Every `period` batches, the threshold becomes the mean over images of the `iou_rank`-th highest
    IoU of the proposals, and beta the median over batches of the (`beta_rank` B)-th smallest
    regression target. With fewer proposals or targets, the last one is used. The size of a target
    is the mean of |dx| and |dy|. The paper uses ranks 75 and 10 and a period of 100.

    Args:
        iou: first and lowest threshold.
        beta: first and highest beta, in units of the deltas.
    """

    iou: Tensor
    beta: Tensor
    history: Tensor  # [2, period], the IoU and the target of the last batches
    count: Tensor  # int64, the number of batches

    def __init__(
        self,
        coder: BoxCoder,
        iou: float,
        beta: float,
        iou_rank: int = 75,
        beta_rank: int = 10,
        period: int = 100,
    ) -> None:
        super().__init__()
        self.coder = coder
        self.min_iou, self.max_beta = iou, beta
        self.iou_rank, self.beta_rank, self.period = iou_rank, beta_rank, period
        self.register_buffer("iou", torch.tensor(iou))
        self.register_buffer("beta", torch.tensor(beta))
        self.register_buffer("history", torch.zeros(2, period))
        self.register_buffer("count", torch.tensor(0))

    @property
    def matcher(self) -> Matcher:
        """The matcher with the current threshold."""
        return Matcher(self.iou, self.iou)

    @torch.no_grad()
    def update(self, proposals: Proposals, samples: Samples, truth: GroundTruth) -> None:
        """Record proposals [B, P] and samples [B, S] of a batch, and set the thresholds if due.

        A batch without ground truth, proposals or foreground records the current thresholds. The
        recorded values are means over processes.
        """
        values = torch.stack([self._iou(proposals, truth), self._target(samples, truth)])
        self.history.index_copy_(
            1, (self.count % self.period)[None], mean_over_processes(values)[:, None]
        )
        self.count += 1
        due = self.count % self.period == 0
        iou = self.history[0].mean().clamp(min=self.min_iou)
        beta = self.history[1].median().clamp(_MIN_BETA, self.max_beta)
        self.iou.copy_(torch.where(due, iou, self.iou))
        self.beta.copy_(torch.where(due, beta, self.beta))

    def _iou(self, proposals: Proposals, truth: GroundTruth) -> Tensor:
        """Return the mean over images of the `iou_rank`-th highest IoU (or the lowest IoU)."""
        _, iou, _ = match_boxes(truth.boxes, truth.valid, proposals.boxes)
        iou = torch.where(proposals.valid, iou, 0)
        iou = nn.functional.pad(iou, (0, 1))  # there may be no proposals
        highest = iou.topk(min(self.iou_rank, iou.shape[1]), dim=1).values
        count = proposals.valid.sum(dim=1)
        ranked = gather(highest, count.clamp(1, highest.shape[1])[:, None] - 1)[:, 0]
        counted = truth.valid.any(dim=1) & (count > 0)
        mean = (ranked * counted).sum() / counted.sum().clamp(min=1)
        return torch.where(counted.any(), mean, self.iou)

    def _target(self, samples: Samples, truth: GroundTruth) -> Tensor:
        """Return the (`beta_rank` B)-th smallest size of the targets (or the largest size)."""
        targets = self.coder.encode(gather(truth.boxes, samples.gt_index), samples.boxes)
        size = targets[..., :2].abs().mean(dim=-1)
        # The ground truth is among the samples, and its targets are 0.
        counted = (samples.labels > 0) & (size > 0)
        ranked = torch.where(counted, size, torch.inf).flatten().sort().values
        count = counted.sum()
        rank = count.clamp(1, self.beta_rank * len(samples.labels))
        value = nn.functional.pad(ranked, (0, 1)).gather(0, rank[None] - 1)[0]
        return torch.where(count > 0, value, self.beta)


def build_dynamic_thresholds(cfg: CfgNode, coder: BoxCoder) -> DynamicThresholds | None:
    """Build the thresholds of MODEL.ROI_HEADS.DYNAMIC; None if it is False.

    Raises:
        ValueError: the thresholds of foreground and background differ, or the box loss is not
            smooth L1 with a beta of at least 0.001.
    """
    heads, box, key = cfg.MODEL.ROI_HEADS, cfg.MODEL.ROI_BOX_HEAD, "MODEL.ROI_HEADS.DYNAMIC"
    if not heads.DYNAMIC:
        return None
    if heads.BG_IOU_THRESHOLD != heads.FG_IOU_THRESHOLD:
        raise ValueError(
            f"{key} has one threshold: set MODEL.ROI_HEADS.BG_IOU_THRESHOLD to FG_IOU_THRESHOLD, "
            f"{heads.FG_IOU_THRESHOLD}"
        )
    if box.BOX_LOSS != "smooth_l1" or box.SMOOTH_L1_BETA < _MIN_BETA:
        raise ValueError(
            f"{key} lowers MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA, {box.SMOOTH_L1_BETA:g}, of BOX_LOSS "
            f"smooth_l1, not of {box.BOX_LOSS}: set BOX_LOSS smooth_l1 and a beta such as 1.0"
        )
    ranks = heads.DYNAMIC_IOU_RANK, heads.DYNAMIC_BETA_RANK, heads.DYNAMIC_PERIOD
    return DynamicThresholds(coder, heads.FG_IOU_THRESHOLD, box.SMOOTH_L1_BETA, *ranks)
