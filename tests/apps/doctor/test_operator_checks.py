"""The doctor's own checks: right operators pass, wrong ones do not."""

from __future__ import annotations

import pytest
import torch

from detlite import ops
from detlite.apps.doctor.operator_checks import operator_errors


def test_all_are_right():
    assert set(operator_errors("cpu").values()) == {""}


@pytest.mark.parametrize(
    ("operator", "wrong"),
    [
        ("roi_align", lambda right: right * 1.01),
        ("roi_pool", lambda right: right.flip(-1)),
        ("nms", lambda right: right[1:]),
        ("batched_nms", lambda right: right.flip(0)),
        ("padded_nms", lambda right: (right[0] + 1, right[1])),
        ("match_boxes", lambda right: (right[0], right[1], ~right[2])),
        ("sigmoid_focal_loss", lambda right: right + 0.01),
        ("crop_masks", lambda right: 1 - right),
        ("heatmap_peaks", lambda right: (right[0] + 1, right[1])),
        ("paste_masks", lambda right: [{**right[0], "counts": b"0"}]),
    ],
)
def test_a_wrong_one_is_found(operator, wrong, monkeypatch):
    right = getattr(ops, operator)
    monkeypatch.setattr(ops, operator, lambda *args, **options: wrong(right(*args, **options)))
    found = operator_errors("cpu")
    assert found[operator]
    assert "\n" not in found[operator]
    assert {name for name, error in found.items() if error} <= {operator, f"{operator}, gradient"}


def test_a_wrong_gradient_is_found(monkeypatch):
    right = ops.roi_align
    monkeypatch.setattr(ops, "roi_align", lambda x, *args: right(x.detach() / 2 + x / 2, *args))
    found = operator_errors("cpu")
    assert [name for name, error in found.items() if error] == ["roi_align, gradient"]


def test_one_that_fails_is_told(monkeypatch):
    def fails(*_args):
        raise NotImplementedError("Could not run 'detlite::nms' with arguments from ...\nmore")

    monkeypatch.setattr(ops, "nms", fails)
    assert operator_errors("cpu")["nms"] == "Could not run 'detlite::nms' with arguments from ..."


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_all_are_right_on_cuda():
    assert set(operator_errors("cuda").values()) == {""}
