"""Test that the checks accept correct operators and detect wrong ones."""

import pytest
import torch

from detlite import ops
from detlite.apps.doctor.operator_checks import operator_errors


def test_all_operators_are_correct():
    assert set(operator_errors("cpu").values()) == {""}


# Wrong results of the operators. No check uses another operator than its own.
CORRUPTIONS = {
    "roi_align": lambda out: out * 1.01,
    "roi_pool": lambda out: out.flip(-1),
    "nms": lambda out: out[1:],
    "batched_nms": lambda out: out.flip(0),
    "padded_nms": lambda out: (out[0] + 1, out[1]),
    "match_boxes": lambda out: (out[0], out[1], ~out[2]),
    "sigmoid_focal_loss": lambda out: out + 0.01,
    "crop_masks": lambda out: 1 - out,
    "heatmap_peaks": lambda out: (out[0] + 1, out[1]),
    "paste_masks": lambda out: [{**out[0], "counts": b"0"}],
}


@pytest.mark.parametrize("part", [0, 1])
def test_wrong_results_are_detected(part, monkeypatch):
    """Half of the operators are wrong at a time, because a run takes a second."""
    wrong = list(CORRUPTIONS)[part::2]
    for name in wrong:
        correct, corrupt = getattr(ops, name), CORRUPTIONS[name]
        result = lambda *args, run=correct, change=corrupt, **more: change(run(*args, **more))  # noqa: E731
        monkeypatch.setattr(ops, name, result)
    errors = operator_errors("cpu")
    found = {name.removesuffix("_gradient") for name, error in errors.items() if error}
    assert found == set(wrong)
    assert all(errors[name] and "\n" not in errors[name] for name in wrong)


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
