"""The thresholds of Dynamic R-CNN."""

import statistics

import pytest
import torch

from detlite.config import ConfigError
from detlite.modeling.boxes.box_coder import BoxCoder
from detlite.modeling.boxes.dynamic import DynamicThresholds
from detlite.modeling.boxes.losses import smooth_l1
from detlite.modeling.boxes.sampler import ProposalSampler
from detlite.modeling.build import build_model
from detlite.structures.boxes import iou
from tests.modeling.boxes.test_sampler import scene

CODER = BoxCoder((10.0, 10.0, 5.0, 5.0))
DYNAMIC = ["MODEL.ROI_HEADS.DYNAMIC", True]


def batches(count):
    """Batches of proposals, samples and ground truth, some images without objects."""
    sampler = ProposalSampler(32, 0.5, DynamicThresholds(CODER, 0.3, 1.0).matcher)
    for number in range(count):
        proposals, truth = scene(3, 0, 1 + number % 3, proposals=(40, 40, 7))
        yield proposals, sampler(proposals, truth, False), truth


def reference_values(proposals, samples, truth, iou_rank, beta_rank):
    """The recorded values of a batch, by loops over images and samples."""
    best, sizes = [], []
    for image in range(len(truth.labels)):
        objects = truth.boxes[image][truth.valid[image]]
        if len(objects):
            own = iou(proposals.boxes[image][proposals.valid[image]], objects).amax(dim=1)
            ranked = sorted(own.tolist(), reverse=True)
            best.append(ranked[min(iou_rank, len(ranked)) - 1])
        for box, label, index in zip(*(getattr(samples, name)[image] for name in
                                       ("boxes", "labels", "gt_index")), strict=True):  # fmt: skip
            if label > 0 and not torch.equal(box, truth.boxes[image, index]):
                dx, dy = CODER.encode(truth.boxes[image, index], box)[:2].tolist()
                sizes.append((abs(dx) + abs(dy)) / 2)
    rank = min(beta_rank * len(truth.labels), len(sizes))
    return statistics.mean(best), sorted(sizes)[rank - 1]


def test_thresholds_follow_the_statistics_of_each_period():
    thresholds = DynamicThresholds(CODER, 0.1, 1.0, iou_rank=9, beta_rank=2, period=5)
    recorded = []
    for number, batch in enumerate(batches(10), 1):
        recorded.append(reference_values(*batch, 9, 2))
        thresholds.update(*batch)
        if number < 5:
            expected = 0.1, 1.0
        elif number % 5 == 0:
            overlaps, sizes = zip(*recorded[-5:], strict=True)
            expected = statistics.mean(overlaps), statistics.median(sizes)
        assert (float(thresholds.iou), float(thresholds.beta)) == pytest.approx(expected, rel=1e-5)
        assert thresholds.matcher.foreground is thresholds.matcher.background is thresholds.iou
    assert 0.1 < expected[0] < 1 > expected[1]


def test_limits_of_the_thresholds():
    thresholds = DynamicThresholds(CODER, 0.99, 0.01, iou_rank=9, beta_rank=2, period=1)
    for batch in batches(1):
        thresholds.update(*batch)
    assert (float(thresholds.iou), float(thresholds.beta)) == pytest.approx((0.99, 0.01))


def test_batches_without_objects_and_proposals_change_nothing():
    thresholds = DynamicThresholds(CODER, 0.4, 0.5, period=1)
    proposals, truth = scene(0, 0, proposals=(0, 0))
    for count in (1, 0):
        own = proposals[:, :count]
        samples = ProposalSampler(8, 0.5, thresholds.matcher)(own, truth, False)
        thresholds.update(own, samples, truth)
        assert (float(thresholds.iou), float(thresholds.beta)) == pytest.approx((0.4, 0.5))
    assert thresholds.count == 2


def test_images_without_proposals_do_not_count():
    values = []
    for count in (2, 3):
        torch.manual_seed(0)
        thresholds = DynamicThresholds(CODER, 0.01, 1.0, iou_rank=5, period=1)
        proposals, truth = scene(2, 2, 2, proposals=(40, 3, 0))
        samples = ProposalSampler(8, 0.5, thresholds.matcher)(proposals, truth, False)
        thresholds.update(proposals[:count], samples[:count], truth[:count])
        values.append(float(thresholds.iou))
    assert values[0] == values[1] > 0.01


@pytest.mark.parametrize("beta", [0.05, 1.0])
def test_smooth_l1_with_a_beta_on_the_device(beta):
    error = torch.randn(200, requires_grad=True)
    results = [smooth_l1(error, value) for value in (beta, torch.tensor(beta))]
    torch.testing.assert_close(*results)
    gradients = [torch.autograd.grad(result.sum(), error)[0] for result in results]
    torch.testing.assert_close(*gradients)


def test_the_sampler_and_the_loss_of_a_model_use_the_thresholds(tiny_config, make_batch):
    opts = [*DYNAMIC, "MODEL.ROI_HEADS.DYNAMIC_PERIOD", 1, "MODEL.ROI_HEADS.DYNAMIC_BETA_RANK", 1]
    model = build_model(tiny_config(*opts))
    thresholds = model.roi_heads.box.thresholds
    assert model.sampler.thresholds is thresholds
    batch = make_batch(2, 1)

    def loss_box(iou, beta):
        thresholds.iou.fill_(iou)
        thresholds.beta.fill_(beta)
        torch.manual_seed(0)
        with torch.no_grad():
            return model(*batch)["loss_box"]

    assert loss_box(0.5, 0.01) > loss_box(0.5, 1.0)  # of small errors, L1 is more than quadratic
    # Only the ground truth has an IoU near 1, and its targets are 0, as is the initial prediction.
    assert loss_box(0.999, 1.0) < 0.1 * loss_box(0.05, 1.0)
    assert thresholds.count == 0  # not without gradients, as on a test set
    model(*batch)
    assert thresholds.count == 1
    assert thresholds.history[1] > 1  # of poor proposals


def test_state_is_stored_and_of_no_use_in_evaluation(tiny_config, make_batch):
    plain, dynamic = build_model(tiny_config()), build_model(tiny_config(*DYNAMIC))
    state = dynamic.state_dict()
    prefix = "roi_heads.box.thresholds."
    assert {n.removeprefix(prefix) for n in state.keys() - plain.state_dict()} == {
        "iou", "beta", "history", "count",
    }  # fmt: skip
    plain.load_state_dict({n: v for n, v in state.items() if not n.startswith(prefix)})
    images, _ = make_batch(2)
    pairs = zip(plain.eval()(images), dynamic.eval()(images), strict=True)
    assert all(torch.equal(a["scores"], b["scores"]) for a, b in pairs)


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (["MODEL.ROI_HEADS.BG_IOU_THRESHOLD", 0.3], r"set .*BG_IOU_THRESHOLD to FG_.*, 0\.5"),
        (["MODEL.ROI_BOX_HEAD.BOX_LOSS", "giou"], "BOX_LOSS smooth_l1, not of giou: set BOX_LOSS"),
        (["MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA", 0.0], "SMOOTH_L1_BETA, 0, .* a beta such as 1"),
        (["MODEL.ROI_BOX_HEAD.PASSES", 2], r"first pass only: set MODEL\.ROI_BOX_HEAD\.PASSES 1"),
        (
            ["MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6, 0.7), "MODEL.CLS_AGNOSTIC_BBOX_REG", True],
            r"DYNAMIC is for a single box head: set MODEL\.ROI_HEADS\.CASCADE_IOUS \(\)",
        ),
        (
            ["MODEL.META_ARCHITECTURE", "ProposalNetwork", "MODEL.MASK_ON", False],
            r"MODEL\.ROI_HEADS\.DYNAMIC need RoI heads, which a ProposalNetwork does not have",
        ),
        (
            ["MODEL.META_ARCHITECTURE", "RetinaNet", "MODEL.MASK_ON", False,
             "MODEL.BACKBONE.CONV_BODY", "R-18-FPN-RETINANET"],
            r"MODEL\.ROI_HEADS\.DYNAMIC need RoI heads, which a RetinaNet does not have",
        ),
    ],
    ids=["two thresholds", "GIoU", "L1", "passes", "cascade", "ProposalNetwork", "RetinaNet"],
)  # fmt: skip
def test_models_without_these_thresholds_are_refused(tiny_config, opts, message):
    with pytest.raises(ConfigError, match=message):
        build_model(tiny_config(*DYNAMIC, *opts))


@pytest.mark.parametrize("key", ["IOU_RANK", "BETA_RANK", "PERIOD"])
def test_invalid_values_are_refused(tiny_config, key):
    with pytest.raises(ConfigError, match=rf"MODEL\.ROI_HEADS\.DYNAMIC_{key} is 0, .*greater"):
        tiny_config(f"MODEL.ROI_HEADS.DYNAMIC_{key}", 0)
