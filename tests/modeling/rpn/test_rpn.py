from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.ops import clip_boxes_to_image

from detlite.conventions import CONVENTIONS
from detlite.modeling.boxes.box_coder import BoxCoder
from detlite.modeling.boxes.losses import BoxLoss
from detlite.modeling.boxes.matcher import IGNORE, Matcher
from detlite.modeling.boxes.sampler import Sampler
from detlite.modeling.build import build_model
from detlite.modeling.rpn.anchors import AnchorGenerator
from detlite.modeling.rpn.rpn import RPN, ProposalLimits
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, Images, Proposals
from tests.builders import padded_gt

SIZE = (32, 48)
MAPS = [(8, 12), (4, 6)]  # strides 4 and 8, one anchor per cell
UNLIMITED = ProposalLimits(pre_nms=10**6, post_nms=10**6, total=10**6, total_per_batch=False)
MATCHER = Matcher(0.5, 0.3, allow_low_quality_matches=True)
TRAINING = {"matcher": MATCHER, "sampler": Sampler(10**6, 0.5), "straddle": -1,
            "box_loss": BoxLoss(beta=1 / 9)}  # fmt: skip


class ConstantHead(nn.Module):
    """Returns constant predictions."""

    def __init__(self, logits: list[torch.Tensor], deltas: list[torch.Tensor]) -> None:
        super().__init__()
        self.predictions = logits, deltas

    def forward(self, features):
        return self.predictions


def make_rpn(batch: int = 1, limits: ProposalLimits = UNLIMITED, **changes) -> RPN:
    logits = [torch.randn(batch, 1, *size) for size in MAPS]
    deltas = [torch.randn(batch, 4, *size) * 0.3 for size in MAPS]
    settings = {"nms_thresh": 1.0, "min_size": 0.0, "convention": CONVENTIONS["detlite"],
                **TRAINING, **changes}  # fmt: skip
    anchors = AnchorGenerator([(8,), (16,)], (1.0,), (4, 8), CONVENTIONS["detlite"])
    coder = BoxCoder((1.0, 1.0, 1.0, 1.0))
    head = ConstantHead(logits, deltas)
    return RPN(head, anchors, coder, train_limits=limits, test_limits=limits, **settings)


def images_of(*sizes: tuple[int, int]) -> Images:
    return Images(torch.zeros(len(sizes), 3, *SIZE), torch.tensor(sizes))


def features(batch: int = 1) -> list[torch.Tensor]:
    return [torch.zeros(batch, 1, *size) for size in MAPS]


def per_image(proposals: Proposals) -> list[torch.Tensor]:
    return [own[valid] for own, valid in zip(proposals.boxes, proposals.valid, strict=True)]


def propose(rpn: RPN, batch: int = 1, size: tuple[int, int] = SIZE) -> list[torch.Tensor]:
    images = images_of(*[size] * batch)
    return per_image(rpn.eval().propose(rpn(features(batch)), images, static_shapes=False))


def compute_losses(rpn: RPN, images: Images, truth: GroundTruth) -> dict[str, torch.Tensor]:
    return rpn.train().losses(rpn(features(len(truth.labels))), images, truth)


def flat_predictions(rpn: RPN, image: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits [N] and deltas [N, 4] of all anchors of an image."""
    logits, deltas = rpn.head.predictions
    return (
        torch.cat([level[image].flatten() for level in logits]),
        torch.cat([level[image].flatten(1).T for level in deltas]),
    )


def all_candidates(rpn: RPN, image: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return clipped boxes, scores and levels of every anchor."""
    scores, deltas = flat_predictions(rpn, image)
    boxes = rpn.box_coder.decode(deltas, torch.cat(rpn.anchor_generator(MAPS)))
    levels = torch.arange(2).repeat_interleave(torch.tensor([8 * 12, 4 * 6]))
    return clip_boxes_to_image(boxes, SIZE), scores, levels


# ---- proposals


def test_without_limits_every_anchor_is_a_proposal():
    rpn = make_rpn()
    boxes, scores, _ = all_candidates(rpn)
    usable = ((boxes[:, 2:] - boxes[:, :2]) > 0).all(1)
    order = scores[usable].argsort(descending=True)
    (proposals,) = propose(rpn)
    assert proposals.dtype == torch.float32
    torch.testing.assert_close(proposals, boxes[usable][order])


def test_pre_nms_limit_applies_to_each_level():
    rpn = make_rpn(limits=replace(UNLIMITED, pre_nms=5))
    boxes, scores, levels = all_candidates(rpn)
    kept = [torch.where(levels == n)[0][scores[levels == n].topk(5).indices] for n in (0, 1)]
    index = torch.cat(kept)[scores[torch.cat(kept)].argsort(descending=True)]
    torch.testing.assert_close(propose(rpn)[0], boxes[index])


def test_post_nms_limit_applies_to_each_level():
    limited = make_rpn(limits=replace(UNLIMITED, post_nms=4), nms_thresh=0.2)
    unlimited = make_rpn(nms_thresh=0.2)
    unlimited.head = limited.head
    boxes, _, levels = all_candidates(limited)
    (every,) = propose(unlimited)
    level_of = levels[torch.cdist(every, boxes).argmin(1)]
    rank = torch.stack([(level_of[: i + 1] == level_of[i]).sum() for i in range(len(every))])
    (proposals,) = propose(limited)
    assert len(proposals) == 8 < len(every)
    torch.testing.assert_close(proposals, every[rank <= 4])


def test_total_limit_per_batch_keeps_the_best_of_all_images():
    rpn = make_rpn(batch=3)
    rpn.head.predictions[0][0][1] += 2  # the second image scores higher
    every = propose(rpn, batch=3)
    scores = [all_candidates(rpn, image)[1] for image in range(3)]
    rpn.test_limits = replace(UNLIMITED, total=60, total_per_batch=True)
    kept = propose(rpn, batch=3)
    assert sum(map(len, kept)) == 60
    assert len(kept[1]) > max(len(kept[0]), len(kept[2]))
    limit = torch.cat(scores).topk(60).values[-1]
    for own, all_own, own_scores in zip(kept, every, scores, strict=True):
        torch.testing.assert_close(own, all_own[: len(own)])
        # Boxes that are empty after clipping make room for others.
        assert len(own) >= (own_scores > limit).sum() - (len(own_scores) - len(all_own))


def test_limits_of_the_config(tiny_config):
    """The limit per batch is only used to train pyramids."""
    keys = ("MODEL.RPN.FPN_POST_NMS_PER_BATCH", True)
    fpn, c4 = build_model(tiny_config(*keys)).rpn, build_model(tiny_config(*keys, c4=True)).rpn
    per_batch = [
        rpn.total_per_batch for rpn in (fpn.train_limits, fpn.test_limits, c4.train_limits)
    ]
    assert per_batch == [True, False, False]
    assert c4.train_limits.total == c4.train_limits.post_nms == 2000


def test_suppression_does_not_cross_levels():
    rpn = make_rpn(nms_thresh=0.0)
    for deltas in rpn.head.predictions[1]:
        deltas.zero_()
    (proposals,) = propose(rpn)
    boxes, _, levels = all_candidates(rpn)
    level_of = levels[torch.cdist(proposals, boxes).argmin(1)]
    for level in (0, 1):
        own = proposals[level_of == level]
        assert len(own) > 1
        assert (box_ops.iou(own, own).fill_diagonal_(0) == 0).all()
    # Boxes of different levels overlap.
    assert (box_ops.iou(proposals[level_of == 0], proposals[level_of == 1]) > 0).any()


def test_nonfinite_proposals_are_dropped():
    rpn = make_rpn()
    logits, deltas = rpn.head.predictions
    logits[0][0, 0, 0, 0] = float("nan")
    logits[0][0, 0, 0, 1] = float("inf")
    deltas[1][0, 0, 0, 0] = float("nan")
    (proposals,) = propose(rpn)
    assert proposals.isfinite().all()
    assert len(proposals) > 50


# ---- losses


@pytest.mark.parametrize("straddle", [-1, 0, 1.5, 2])
@pytest.mark.parametrize("beta", [0.0, 1 / 9])
def test_losses_of_all_anchors(straddle, beta):
    """Anchors that exceed the image by more than the threshold are left out."""
    truth = torch.tensor([[3.0, 4, 12, 11], [20, 10, 37, 24], [40, 24, 48, 32]])
    sampler = Sampler(10**6, 1.0)
    rpn = make_rpn(sampler=sampler, straddle=straddle, box_loss=BoxLoss(beta=beta))
    losses = compute_losses(rpn, images_of(SIZE), padded_gt(truth))
    (logits, deltas), anchors = flat_predictions(rpn), torch.cat(rpn.anchor_generator(MAPS))
    matched, (height, width) = MATCHER(padded_gt(truth), anchors)[0], SIZE
    beyond = torch.cat([-anchors[:, :2], anchors[:, 2:] - torch.tensor([width, height])], dim=1)
    if straddle >= 0:
        matched[(beyond > straddle).any(dim=1)] = IGNORE
    counted, objects = matched != IGNORE, matched >= 0
    objectness = F.binary_cross_entropy_with_logits(logits[counted], objects[counted].float())
    expected = rpn.box_coder.encode(truth[matched[objects]], anchors[objects])
    box = F.smooth_l1_loss(deltas[objects], expected, beta=beta, reduction="sum") / counted.sum()
    torch.testing.assert_close(losses["loss_objectness"], objectness)
    torch.testing.assert_close(losses["loss_rpn_box"], box)


@pytest.mark.parametrize("count", [8, 1000])
def test_loss_normalizers(count):
    truth = padded_gt(torch.tensor([[3.0, 4, 12, 11]]), torch.zeros(0, 4))
    losses = []
    for normalizer in ("sampled", "capacity"):
        torch.manual_seed(0)
        convention = replace(CONVENTIONS["detlite"], rpn_loss_normalizer=normalizer)
        rpn = make_rpn(batch=2, sampler=Sampler(count, 0.5), convention=convention)
        torch.manual_seed(0)
        losses.append(compute_losses(rpn, images_of(SIZE, SIZE), truth))
    matched = MATCHER(truth, torch.cat(rpn.anchor_generator(MAPS)))
    sampled = (matched >= -1).sum(dim=1).clamp(max=count).sum()
    for name, value in losses[0].items():
        torch.testing.assert_close(value * sampled / (2 * count), losses[1][name])


def test_proposals_of_low_objectness_are_dropped():
    torch.manual_seed(0)
    rpn = make_rpn(score_thresh=0.6).eval()
    every = make_rpn().eval()
    every.head = rpn.head
    images = images_of(SIZE)
    kept, proposals = (m.propose(m(features()), images, False) for m in (rpn, every))
    scores = proposals.scores[proposals.valid]
    torch.testing.assert_close(kept.scores[kept.valid], scores[scores.sigmoid() >= 0.6])
    assert 0 < kept.valid.sum() < proposals.valid.sum()
