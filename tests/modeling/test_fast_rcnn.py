"""Fast R-CNN: detectors without an RPN, with proposals as inputs."""

import pytest
import torch

from detlite.modeling.build import build_model

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
