"""A detector without an RPN, whose regions come with the images."""

from __future__ import annotations

import pytest
import torch

from detlite.config import ConfigError
from detlite.modeling.rcnn import build_model

LOAD = ["MODEL.LOAD_PROPOSALS", True]
CASCADE = ["MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6, 0.7), "MODEL.CLS_AGNOSTIC_BBOX_REG", True]


@pytest.fixture
def proposed(make_batch):
    """Pictures whose targets bring the objects' boxes, shifted, and others as proposals."""
    images, targets = make_batch(2, 1)
    for target in targets:
        near = target["boxes"] + torch.tensor([1.0, -1, 2, 1])
        target["proposals"] = torch.cat(
            [near, torch.rand(20, 4) * 30 + torch.tensor([0, 0, 30, 30])]
        )
    return images, targets


def regions(targets):
    return [target["proposals"] for target in targets]


@pytest.mark.parametrize(
    ("opts", "c4"), [([], False), ([], True), (CASCADE, False)], ids=["FPN", "C4", "cascade"]
)
def test_trains_and_detects(tiny_config, proposed, opts, c4):
    images, targets = proposed
    model = build_model(tiny_config(*LOAD, *opts, c4=c4))
    assert not any(name.startswith("rpn.") for name in model.state_dict())
    losses = model(images, targets)
    assert not {"loss_objectness", "loss_rpn_box"} & losses.keys()
    sum(losses.values()).backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    found = model.eval()(images, targets)
    assert [set(own) for own in found] == [{"boxes", "labels", "scores", "masks"}] * 2
    for own, other in zip(found, model.detect(images, regions(targets)), strict=True):
        assert torch.equal(own["boxes"], other["boxes"])


@pytest.mark.parametrize("c4", [False, True])
def test_it_is_faster_rcnn_on_the_same_regions(tiny_config, make_batch, c4):
    images, targets = make_batch(2, 1)
    faster, fast = (build_model(tiny_config(*opts, c4=c4)) for opts in ([], LOAD))
    state = faster.state_dict()
    fast.load_state_dict({name: state[name] for name in fast.state_dict()})
    given = []
    faster.rpn.register_forward_hook(lambda _, inputs, output: given.append(output[0]))
    torch.manual_seed(1)
    wanted = faster(images, targets)
    targets = [{**t, "proposals": own} for t, own in zip(targets, given.pop(), strict=True)]
    torch.manual_seed(1)
    # The RPN draws its own samples first.
    sizes = [image.shape[-2:] for image in images]
    with torch.no_grad():
        features = faster.backbone(faster.normalizer(images).tensor)
        faster.rpn(sizes, features, targets)
    losses = fast(images, targets)
    for name, loss in losses.items():
        torch.testing.assert_close(loss, wanted[name])
    given.clear()
    wanted = faster.eval()(images)
    for own, other in zip(wanted, fast.eval().detect(images, given[0]), strict=True):
        torch.testing.assert_close(own["boxes"], other["boxes"])
        torch.testing.assert_close(own["scores"], other["scores"])


def test_images_without_regions(tiny_config, make_batch):
    images, targets = make_batch(2, 0)
    targets = [{**target, "proposals": torch.zeros(0, 4)} for target in targets]
    model = build_model(tiny_config(*LOAD))
    losses = model(images, targets)  # ground truth is among the regions
    assert all(loss.isfinite() for loss in losses.values())
    assert [len(own["boxes"]) for own in model.eval()(images, targets)] == [0, 0]


def test_regions_without_extent_are_left_out(tiny_config, proposed):
    images, targets = proposed
    model = build_model(tiny_config(*LOAD)).eval()
    flat = torch.tensor([[5.0, 5, 5, 9], [9, 9, 4, 12]])
    more = [torch.cat([flat, own]) for own in regions(targets)]
    pairs = zip(model.detect(images, more), model.detect(images, regions(targets)), strict=True)
    for own, other in pairs:
        assert torch.equal(own["boxes"], other["boxes"])


@pytest.mark.parametrize(
    ("proposals", "error", "message"),
    [
        (None, ValueError, r"has no RPN and needs regions: `proposals` in each target, or"),
        ([torch.zeros(0, 4)], ValueError, "2 images, but proposals of 1"),
        ([torch.zeros(0, 4), None], TypeError, r"image 1 must be a tensor \[R, 4\], not missing"),
        ([torch.zeros(0, 4), [1]], TypeError, "image 1 must be a tensor .* not list"),
        ([torch.zeros(3, 5), torch.zeros(0, 4)], ValueError, r"image 0 must be \[R, 4\], not"),
        ([torch.full((1, 4), torch.nan)] * 2, ValueError, "image 0 must be finite"),
    ],
)
def test_bad_regions(tiny_config, make_batch, proposals, error, message):
    images, targets = make_batch(1, 1)
    model = build_model(tiny_config(*LOAD))
    with pytest.raises(error, match=message):
        model.eval().detect(images, proposals)
    if proposals is None or len(proposals) == 2:
        given = proposals or [None, None]
        targets = [{**target, "proposals": own} for target, own in zip(targets, given, strict=True)]
        with pytest.raises((TypeError, ValueError), match="proposals of image"):
            model.train()(images, targets)


@pytest.mark.parametrize(
    "opts", [[], ["MODEL.RPN_ONLY", True, "MODEL.MASK_ON", False]], ids=["Mask R-CNN", "RPN"]
)
def test_regions_for_a_model_that_proposes_itself(tiny_config, make_batch, opts):
    images, _ = make_batch(1)
    with pytest.raises(ValueError, match="the model finds its regions itself"):
        build_model(tiny_config(*opts)).eval().detect(images, [torch.zeros(0, 4)])


@pytest.mark.parametrize("key", ["RPN_ONLY", "RETINANET_ON"])
def test_detectors_without_heads(tiny_config, key):
    cfg = tiny_config("MODEL.MASK_ON", False, f"MODEL.{key}", True)
    cfg.defrost()
    cfg.MODEL.LOAD_PROPOSALS = True
    with pytest.raises(ConfigError, match=f"MODEL.{key} leaves out the heads"):
        build_model(cfg)
