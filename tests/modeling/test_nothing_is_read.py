"""With fixed shapes nothing waits for a value, in any detector; padding changes no result."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from detlite.modeling.build import build_model
from detlite.modeling.preprocessing import prepare_targets
from detlite.structures.instances import GroundTruth
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.padding import Rows, fixed_shapes, varying_shapes

aten = torch.ops.aten
_READS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
    aten.equal.default,
}


class NothingIsRead(TorchDispatchMode):
    """Fails where the host, or a shape, would depend on a value of a tensor."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        chooses = func is aten.index.Tensor and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        sized = "output_size" in kwargs  # of repeat_interleave: it need not add up
        if (func in _READS and not sized) or chooses:
            raise AssertionError(f"{func} reads a value")
        return func(*args, **kwargs)


ALONE = ["MODEL.META_ARCHITECTURE", "ProposalNetwork", "MODEL.MASK_ON", False]
RETINANET = ["MODEL.META_ARCHITECTURE", "RetinaNet", "MODEL.MASK_ON", False,
             "MODEL.BACKBONE.CONV_BODY", "R-18-FPN-RETINANET", "MODEL.RETINANET.NUM_CLASSES", 4,
             "MODEL.RETINANET.NUM_CONVS", 1]  # fmt: skip
CASCADE = ["MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6, 0.7), "MODEL.CLS_AGNOSTIC_BBOX_REG", True]
MODELS = {
    "masks": [],
    "cascade": CASCADE,
    "retinanet": RETINANET,
    "proposals alone": ALONE,
}
each_model = pytest.mark.parametrize("opts", MODELS.values(), ids=MODELS)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.arange(4).repeat_interleave(x),
        Rows,
    ],
)
def test_reading_is_noticed(read):
    with varying_shapes(), pytest.raises(AssertionError, match="reads a value"), NothingIsRead():
        read(torch.ones(4, dtype=torch.int64).view(2, 2) if read is Rows else torch.arange(4))


@each_model
def test_losses_read_nothing(tiny_config, make_batch, opts):
    images, targets = make_batch(2, 0, 1)
    model = build_model(tiny_config(*opts)).train()
    batch, _ = model.prepare(images)
    truth = prepare_targets(targets, images, model.num_classes, model.needs)
    with fixed_shapes(), NothingIsRead():
        losses = model.losses(batch, truth)
        sum(losses.values()).backward()
    assert all(loss.isfinite() for loss in losses.values())
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@each_model
@torch.no_grad()
def test_detections_read_nothing(tiny_config, make_batch, opts):
    images, _ = make_batch(2, 1)
    model = build_model(tiny_config(*opts)).eval()
    batch, _ = model.prepare(images)
    with fixed_shapes(), NothingIsRead():
        model.predict(batch)


def padded_further(truth: GroundTruth, count: int) -> GroundTruth:
    masks = truth.masks
    if masks is not None:
        own, most = len(truth.labels), truth.labels.shape[1]
        places = torch.arange(own * most).view(own, most)
        masks = PackedMasks.collate([masks.select(image) for image in places], most + count)
    boxes = F.pad(truth.boxes, (0, 0, 0, count), value=7.0)
    return replace(truth, boxes=boxes, labels=F.pad(truth.labels, (0, count)), masks=masks)


@each_model
@pytest.mark.parametrize("counts", [(2, 1), (0, 2), (0, 0)])
def test_losses_of_fixed_and_varying_shapes_agree(tiny_config, make_batch, opts, counts):
    """Also those of ground truth that is padded further; everything is sampled."""
    every = ["MODEL.RPN.BATCH_SIZE_PER_IMAGE", 10**6, "MODEL.RPN.POSITIVE_FRACTION", 1.0,
             "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 200,
             "MODEL.ROI_HEADS.POSITIVE_FRACTION", 1.0]  # fmt: skip
    images, targets = make_batch(*counts)
    model = build_model(tiny_config(*opts, *every)).train()
    batch, _ = model.prepare(images)
    truth = prepare_targets(targets, images, model.num_classes, model.needs)

    def losses(given: GroundTruth) -> tuple[dict[str, Tensor], list[Tensor]]:
        found = model.losses(batch, given)
        model.zero_grad()
        sum(found.values()).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        return found, gradients

    wanted, gradients = losses(truth)
    for given in (truth, padded_further(truth, 3)):
        with fixed_shapes():
            found, own = losses(given)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(own, gradients, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(losses(padded_further(truth, 3))[0], wanted, rtol=1e-4, atol=1e-6)
