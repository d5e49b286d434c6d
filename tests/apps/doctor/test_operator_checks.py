"""Test that the checks accept correct operators and detect wrong ones."""

import itertools

import pytest
import torch

from detlite import ops
from detlite.apps.doctor.operator_checks import operator_errors, print_checks

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_all_operators_are_correct(device):
    assert set(operator_errors(device).values()) == {""}


def test_wrong_results_and_failures_are_detected(monkeypatch):
    corruptions = {
        "roi_align": lambda out: out + out.mean() / 100,
        "roi_pool": lambda out: out.flip(-1),
        "nms": lambda out: out[1:],
        "batched_nms": lambda out: out.flip(0),
        "padded_nms": lambda out: (out[0] + 1, out[1]),
        "match_boxes": lambda out: (out[0], out[1], ~out[2]),
        "crop_masks": lambda out: 1 - out,
        "heatmap_peaks": lambda out: (out[0] + 1, out[1]),
        "paste_masks": lambda out: [{**out[0], "counts": b"0"}],
    }
    for name, corrupt in corruptions.items():
        correct = getattr(ops, name)
        # The second call of each check is the fallback.
        calls = itertools.cycle([corrupt, lambda out: out])
        result = lambda *args, run=correct, do=calls, **more: next(do)(run(*args, **more))  # noqa: E731
        monkeypatch.setattr(ops, name, result)
    error = NotImplementedError("Could not run 'detlite::x' with arguments from ...\nmore")
    monkeypatch.setattr(ops, "sigmoid_focal_loss", lambda *_: (_ for _ in ()).throw(error))
    errors = operator_errors("cpu")
    assert all(message and "\n" not in message for message in errors.values())
    assert {name.removesuffix("_gradient") for name in errors} - {*corruptions} == {
        "sigmoid_focal_loss"
    }
    assert errors["sigmoid_focal_loss"] == "Could not run 'detlite::x' with arguments from ..."


@pytest.mark.parametrize("has_kernels", [True, False])
def test_fallbacks_are_not_called_correct(has_kernels, monkeypatch, capsys):
    """On a CPU without kernels, each operator is compared with itself."""
    monkeypatch.setattr(ops, "has_kernels", lambda device: has_kernels)
    assert print_checks("cpu") == 0
    lines = capsys.readouterr().out.strip().splitlines()[1:]
    assert {line.split()[1] for line in lines} == {"correct" if has_kernels else "runs"}
