"""Test that the checks accept correct operators and detect wrong ones."""

import pytest
import torch

from detlite import ops
from detlite.apps.doctor.operator_checks import operator_errors


def test_all_operators_are_correct():
    assert set(operator_errors("cpu").values()) == {""}


@pytest.mark.parametrize(
    ("operator", "corrupt"),
    [
        ("roi_align", lambda out: out * 1.01),
        ("roi_pool", lambda out: out.flip(-1)),
        ("nms", lambda out: out[1:]),
        ("batched_nms", lambda out: out.flip(0)),
        ("padded_nms", lambda out: (out[0] + 1, out[1])),
        ("match_boxes", lambda out: (out[0], out[1], ~out[2])),
        ("sigmoid_focal_loss", lambda out: out + 0.01),
        ("crop_masks", lambda out: 1 - out),
        ("heatmap_peaks", lambda out: (out[0] + 1, out[1])),
        ("paste_masks", lambda out: [{**out[0], "counts": b"0"}]),
    ],
)
def test_wrong_result_is_detected(operator, corrupt, monkeypatch):
    correct = getattr(ops, operator)
    monkeypatch.setattr(ops, operator, lambda *args, **options: corrupt(correct(*args, **options)))
    errors = operator_errors("cpu")
    assert errors[operator]
    assert "\n" not in errors[operator]
    assert {name for name, error in errors.items() if error} <= {operator, f"{operator}_gradient"}


def test_wrong_gradient_is_detected(monkeypatch):
    correct = ops.roi_align
    monkeypatch.setattr(ops, "roi_align", lambda x, *args: correct(x.detach() / 2 + x / 2, *args))
    errors = operator_errors("cpu")
    assert [name for name, error in errors.items() if error] == ["roi_align_gradient"]


def test_failure_is_reported(monkeypatch):
    def fails(*_args):
        raise NotImplementedError("Could not run 'detlite::nms' with arguments from ...\nmore")

    monkeypatch.setattr(ops, "nms", fails)
    assert operator_errors("cpu")["nms"] == "Could not run 'detlite::nms' with arguments from ..."


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_all_operators_are_correct_on_cuda():
    assert set(operator_errors("cuda").values()) == {""}
