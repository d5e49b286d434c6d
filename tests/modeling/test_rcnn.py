"""Whole two-stage detectors: training, evaluation and construction."""

import pytest
import torch

from detlite.modeling.build import build_model
from detlite.structures import boxes as box_ops
from tests.modeling.family import LOSSES, family_config


def test_model_overfits_one_image(tiny_config, make_batch):
    model = build_model(tiny_config("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 64)).train()
    images, targets = make_batch(2)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    history = []
    for _ in range(60):
        losses = model(images, targets)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        history.append(torch.stack([losses[name].detach() for name in sorted(LOSSES)]))
    first, last = (torch.stack(part).mean(0) for part in (history[:5], history[-5:]))
    assert last.sum() < 0.5 * first.sum()
    for name in ("loss_objectness", "loss_classifier", "loss_mask"):
        assert last[sorted(LOSSES).index(name)] < 0.5 * first[sorted(LOSSES).index(name)], name
    (result,) = model.eval()(images)
    for box, label, mask in zip(
        *(targets[0][name] for name in ("boxes", "labels", "masks")), strict=True
    ):
        best = torch.where(result["labels"] == label)[0][0]
        assert box_ops.iou(box[None], result["boxes"][best][None]).item() > 0.5
        pixels = result["masks"][best, 0] > 0.5
        assert (pixels & (mask > 0)).sum() > 0.5 * (pixels | (mask > 0)).sum()


LOAD = ["MODEL.LOAD_PROPOSALS", True]


@pytest.mark.parametrize("c4", [False, True])
def test_results_equal_faster_rcnn_with_the_same_proposals(
    tiny_config, make_batch, monkeypatch, c4
):
    # Both sample the first proposals.
    monkeypatch.setattr(
        torch, "rand", lambda shape, device=None: torch.linspace(1, 0, shape[-1]).expand(shape)
    )
    images, targets = make_batch(2, 1)
    faster, fast = (
        build_model(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0, *opts, c4=c4))
        for opts in ([], LOAD)
    )
    state = faster.state_dict()
    fast.load_state_dict({name: state[name] for name in fast.state_dict()})
    original, proposed = faster.rpn.propose, []

    def propose(*args):
        proposals = original(*args)
        pairs = zip(proposals.boxes, proposals.valid, strict=True)
        proposed.append([boxes[valid] for boxes, valid in pairs])
        return proposals

    monkeypatch.setattr(faster.rpn, "propose", propose)
    expected = faster(images, targets)
    targets = [{**t, "proposals": own} for t, own in zip(targets, proposed.pop(), strict=True)]
    losses = fast(images, targets)
    assert losses.keys() == {"loss_classifier", "loss_box", "loss_mask"}
    for name, loss in losses.items():
        torch.testing.assert_close(loss, expected[name])
    expected = faster.eval().detect(images)
    for own, other in zip(expected, fast.eval().detect(images, proposed[0]), strict=True):
        assert len(own.boxes) == 20
        torch.testing.assert_close(own.boxes, other.boxes)
        torch.testing.assert_close(own.scores, other.scores)


@pytest.mark.parametrize(
    ("proposals", "error", "message"),
    [
        (None, ValueError, r"has no RPN and needs proposals: `proposals` in each target, or"),
        ([torch.zeros(0, 4)], ValueError, "there are 2 images, but proposals for 1"),
        ([torch.zeros(0, 4), None], TypeError, r"image 1 must be a tensor \[P, 4\], not missing"),
        ([torch.zeros(0, 4), [1]], TypeError, "image 1 must be a tensor .* not list"),
        ([torch.zeros(3, 5), torch.zeros(0, 4)], ValueError, r"image 0 must be \[P, 4\], not"),
        ([torch.full((1, 4), torch.nan)] * 2, ValueError, "image 0 must be finite"),
    ],
)
def test_invalid_proposals(tiny_config, make_batch, proposals, error, message):
    images, targets = make_batch(1, 1)
    model = build_model(tiny_config(*LOAD))
    with pytest.raises(error, match=message):
        model.eval().detect(images, proposals)
    if proposals is None or len(proposals) == 2:
        inputs = proposals or [None, None]
        targets = [
            {**target, "proposals": own} for target, own in zip(targets, inputs, strict=True)
        ]
        with pytest.raises((TypeError, ValueError), match="proposals of image"):
            model.train()(images, targets)


@pytest.mark.parametrize(
    "opts",
    [[], ["MODEL.META_ARCHITECTURE", "ProposalNetwork", "MODEL.MASK_ON", False]],
    ids=["Mask R-CNN", "RPN"],
)
def test_proposals_for_a_model_with_an_rpn(tiny_config, make_batch, opts):
    images, _ = make_batch(1)
    with pytest.raises(ValueError, match="proposals are given, but the model predicts its own"):
        build_model(tiny_config(*opts)).eval().detect(images, [torch.zeros(0, 4)])


@pytest.mark.parametrize("name", ["mask", "c4", "cascade", "retinanet", "retinanet-torchvision"])
def test_scores_of_all_classes_and_features(name, tiny_config):
    features = () if name.startswith("retinanet") else ("features",)
    cfg = family_config(
        name, tiny_config, "TEST.EXTRA_OUTPUTS", ("class_scores", *features),
        "MODEL.ROI_HEADS.SCORE_THRESH", 0.0,
    )  # fmt: skip
    model = build_model(cfg).eval()
    images = [torch.rand(3, 64, 96), torch.rand(3, 80, 72)]
    batch, _ = model.prepare(images)
    with torch.no_grad():
        maps = model.backbone(batch.pixels)
        results = model.detect(images)
    for number, one in enumerate(results):
        assert len(one.boxes) > 3
        assert one.extra_fields["class_scores"].shape[1] == model.num_classes - 1
        foreground = one.labels > 0  # torchvision's RetinaNet detects the background too
        own = one.extra_fields["class_scores"][foreground].gather(
            1, one.labels[foreground, None] - 1
        )[:, 0]
        torch.testing.assert_close(own, one.scores[foreground])
        if features:
            image = torch.full((len(one.boxes), 1), float(number))
            rois = torch.cat([image, one.boxes], dim=1)
            with torch.no_grad():
                expected = model.roi_heads.box.feature_extractor(maps, rois)
            expected = expected.flatten(2).mean(dim=2) if expected.dim() == 4 else expected
            torch.testing.assert_close(one.extra_fields["features"], expected, rtol=1e-4, atol=1e-5)
    result = model(images)[0]
    torch.testing.assert_close(result["class_scores"], results[0].extra_fields["class_scores"])
