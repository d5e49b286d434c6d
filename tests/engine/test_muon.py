"""The Muon optimizer."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from detlite.config import load_config
from detlite.engine.muon import Muon, hidden_matrices, orthogonalize
from detlite.engine.solver import build_optimizer
from detlite.modeling.backbone.deform import DeformConv3x3
from detlite.modeling.build import build_model
from tests.engine.toy import assert_equal
from tests.modeling.family import family_config


def build(model, *opts):
    cfg = load_config(None, ["SOLVER.OPTIMIZER", "Muon", "SOLVER.BASE_LR", 0.02, *opts])
    return build_optimizer(cfg, model)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3), nn.Conv2d(12, 12, 3, groups=12),
        nn.ConvTranspose2d(12, 6, 2), nn.Linear(6, 20), nn.GroupNorm(4, 20),
    )  # fmt: skip


def set_gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def newton_schulz(matrix):
    """The published iteration, in float64."""
    x = matrix.double() / matrix.double().norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


@pytest.mark.parametrize("shape", [(3, 5), (6, 6), (40, 7), (5, 600), (1, 4)])
def test_orthogonalized_is_the_published_iteration(shape):
    torch.manual_seed(1)
    matrix = torch.randn(shape)
    expected = newton_schulz(matrix if shape[0] <= shape[1] else matrix.T)
    expected = expected if shape[0] <= shape[1] else expected.T
    torch.testing.assert_close(orthogonalize(matrix).double(), expected, rtol=0, atol=1e-4)


def test_singular_values_become_about_one():
    torch.manual_seed(0)
    u, v = torch.linalg.qr(torch.randn(8, 8))[0], torch.linalg.qr(torch.randn(30, 8))[0]
    matrix = 100 * u @ torch.logspace(0, -1.5, 8).diag() @ v.T
    result = u.T @ orthogonalize(matrix) @ v
    assert ((result.diagonal() > 0.65) & (result.diagonal() < 1.25)).all()
    torch.testing.assert_close(result, result.diagonal().diag(), rtol=0, atol=1e-4)


def test_zero_gradients_change_nothing():
    assert torch.equal(orthogonalize(torch.zeros(3, 4)), torch.zeros(3, 4))


@pytest.mark.parametrize("shape", [(16, 40), (40, 16)])
def test_steps_are_those_of_torch(shape):
    torch.manual_seed(0)
    ours = nn.Linear(*shape, bias=False)
    theirs = deepcopy(ours)
    optimizer = build(ours, "SOLVER.WEIGHT_DECAY", 0.1, "SOLVER.MOMENTUM", 0.8)
    reference = torch.optim.Muon(
        theirs.parameters(), 0.02, weight_decay=0.1, momentum=0.8, adjust_lr_fn="match_rms_adamw"
    )
    before = ours.weight.detach().clone()
    for seed in range(3):
        for model in (ours, theirs):
            set_gradients(model, seed)
        optimizer.step()
        reference.step()
    # torch iterates in bfloat16.
    change = (theirs.weight - before).norm()
    assert (ours.weight - theirs.weight).norm() < 0.03 * change


def test_updates_have_the_scale_of_adamw():
    model = nn.Linear(64, 32, bias=False)
    before = model.weight.detach().clone()
    optimizer = build(model, "SOLVER.WEIGHT_DECAY", 0.0)
    set_gradients(model, 0)
    optimizer.step()
    change = (model.weight.detach() - before).square().mean().sqrt()
    assert float(change) == pytest.approx(0.2 * 0.02, rel=0.2)


def test_kernels_are_matrices_with_a_row_for_each_output_channel():
    conv = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 3, bias=False))
    linear = nn.Linear(36, 5, bias=False)
    linear.weight.data = conv[1].weight.detach().flatten(1).clone()
    optimizers = [build(conv.to(memory_format=torch.channels_last)), build(linear)]
    for seed in range(2):
        set_gradients(linear, seed)
        set_gradients(conv, seed)
        conv[1].weight.grad = linear.weight.grad.view(5, 4, 3, 3).clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(conv[1].weight.flatten(1), linear.weight)


def test_other_parameters_have_the_updates_of_adamw():
    ours, theirs = make_model(), make_model()
    muon = build(ours, "SOLVER.WEIGHT_DECAY", 0.1)
    adamw = build(theirs, "SOLVER.WEIGHT_DECAY", 0.1, "SOLVER.OPTIMIZER", "AdamW")
    for seed in range(3):
        for model, optimizer in ((ours, muon), (theirs, adamw)):
            set_gradients(model, seed)
            optimizer.step()
    same = {n for n, p in ours.named_parameters() if torch.equal(p, theirs.get_parameter(n))}
    matrices = {f"{number}.weight" for number in (1, 3, 4)}
    assert same == dict(ours.named_parameters()).keys() - matrices


def test_matrices_of_a_detector(tiny_config):
    model = build_model(family_config("keypoint", tiny_config))
    chosen = hidden_matrices(model)
    names = {name for name, p in model.named_parameters() if any(p is one for one in chosen)}
    assert {"rpn.head.conv.weight", "roi_heads.mask.predictor.conv5_mask.weight"} <= names
    assert all(name.endswith("weight") for name in names)
    for part in (
        "stem.conv1", "cls_score", "bbox_pred", "cls_logits", "mask_fcn_logits", "kps_score_lowres"
    ):  # fmt: skip
        assert any(f"{part}.weight" in name for name, _ in model.named_parameters()), part
        assert not any(part in name for name in names), part


def test_adamw_updates_offsets_of_deformable_convolutions():
    deformable = DeformConv3x3(nn.Conv2d(8, 8, 3))
    chosen = hidden_matrices(nn.Sequential(nn.Conv2d(3, 8, 3), deformable))
    assert chosen == {deformable.conv.weight}


def test_frozen_parameters_are_left_as_they_are():
    model = make_model()
    optimizer = build(model)
    set_gradients(model, 0)
    before = model[1].weight.detach().clone()
    model[1].weight.grad = None
    optimizer.step()
    assert torch.equal(model[1].weight, before)
    assert model[1].weight not in optimizer.state


def test_a_closure_computes_the_gradients():
    model = make_model()

    def closure():
        assert torch.is_grad_enabled()
        set_gradients(model, 0)
        return 1.5

    before = deepcopy(model)
    assert build(model).step(closure) == 1.5
    pairs = zip(model.parameters(), before.parameters(), strict=True)
    assert not any(torch.equal(*pair) for pair in pairs)


def test_a_resumed_optimizer_continues_bit_for_bit():
    model, resumed = make_model(), make_model()
    optimizer = build(model)
    for seed in range(3):
        set_gradients(model, seed)
        optimizer.step()
    resumed.load_state_dict(model.state_dict())
    second = build(resumed)
    second.load_state_dict(deepcopy(optimizer.state_dict()))
    for one, own in ((model, optimizer), (resumed, second)):
        assert isinstance(own, Muon)
        for seed in range(3, 6):
            set_gradients(one, seed)
            own.step()
    assert_equal(resumed.state_dict(), model.state_dict())
    assert_equal(second.state_dict()["state"], optimizer.state_dict()["state"])
