"""Invalid arguments of the operators raise errors that name the argument."""

import math

import pytest
import torch

from detlite import ops
from detlite.ops.dispatch import use_fallback_ops

NO_FRAME = [0] * 6


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def longs(*values):
    return torch.tensor(values, dtype=torch.int64)


def maps(*widths, channels=3):
    return [zeros(2, channels, 5, width) for width in widths]


POOLING = {"input": zeros(1, 3, 5, 5), "boxes": zeros(2, 5), "output_size": 7}
PYRAMID = {
    "inputs": maps(8, 6, 4), "boxes": zeros(2, 5), "output_size": 7,
    "spatial_scales": [0.25, 0.125, 0.0625],
}  # fmt: skip
SUPPRESSION = {"boxes": zeros(3, 4), "scores": zeros(3), "iou_threshold": 0.5}
# Valid arguments of each operator.
VALID = {
    "batched_nms": SUPPRESSION | {"idxs": longs(0, 0, 0)},
    "crop_masks": {  # a polygon, and run lengths
        "values": torch.tensor([4.0, 4, 12, 4, 12, 12, 4, 12, 3, 9]).double(),
        "pieces": longs(0, 8, 10), "instances": longs(0, 1, 2),
        "frames": torch.tensor([NO_FRAME, [20, 20, 0, 1, 40, 30]]), "index": longs(0, 1, -1),
        "boxes": torch.tensor([[0.0, 0, 16, 16]] * 3), "resolution": 14, "soft": False,
    },
    "heatmap_peaks": {"maps": zeros(2, 3, 9, 9), "boxes": zeros(2, 4)},
    "match_boxes": {
        "truth": zeros(2, 3, 4), "valid": zeros(2, 3, dtype=torch.bool), "candidates": zeros(5, 4)
    },
    "nms": SUPPRESSION,
    "padded_nms": {
        "boxes": zeros(2, 3, 4), "scores": zeros(2, 3), "groups": zeros(2, 3).long(),
        "valid": zeros(2, 3).bool(), "iou_threshold": 0.5, "limit": 4,
    },
    "paste_masks": {
        "probs": zeros(2, 7, 7), "boxes": zeros(2, 4), "size": (9, 9), "threshold": 0.5
    },
    "pyramid_roi_align": PYRAMID,
    "pyramid_roi_pool": PYRAMID,
    "roi_align": POOLING,
    "roi_pool": POOLING,
    "sigmoid_focal_loss": {
        "inputs": zeros(3), "targets": zeros(3), "alpha": 0.25, "gamma": 2.0
    },
}  # fmt: skip
NMS = (
    ("boxes", zeros(3, 5), r"boxes must have shape \[N, 4\], got \[3, 5\]"),
    ("boxes", zeros(4), r"boxes must have shape \[N, 4\], got \[4\]"),
    ("boxes", zeros(3, 4).int(), "boxes must be floating point, got int32"),
    ("scores", zeros(3, 1), r"scores must have shape \[3\]"),
    ("scores", zeros(3).long(), "scores must be floating point, got int64"),
    ("iou_threshold", -0.1, "iou_threshold must be zero or more"),
    ("iou_threshold", math.nan, "iou_threshold must be zero or more"),
)
POOL = (
    ("input", zeros(3, 5, 5), "input must have 4 dimensions"),
    ("input", zeros(1, 3, 5, 5).int(), "input must be float64"),
    ("boxes", zeros(2, 4), r"boxes must have shape \[K, 5\]"),
    ("boxes", [zeros(2, 4)] * 2, "each of 1 images, got 2"),
    ("boxes", [zeros(2, 5)], r"boxes\[0\] must have shape"),
    ("boxes", torch.ones(2, 5), r"rois\[0, 0\] is batch index 1"),
    ("boxes", torch.tensor([[-2.0, 0, 0, 1, 1]]), "batch index -2"),
    ("boxes", torch.tensor([[-0.5, 0, 0, 1, 1]]), "batch index -0.5"),
    ("boxes", torch.full((1, 5), torch.nan), "batch index nan"),
    ("output_size", (0, 7), "pooled_height must be from 1"),
    ("output_size", (7, -1), "pooled_width must be from 1"),
    ("output_size", (7, 7, 7), "output_size must be one number or two"),
    ("spatial_scale", -1.0, "spatial_scale must be a positive number"),
    ("spatial_scale", torch.nan, "spatial_scale must be a positive number"),
)
PYRAMID_POOL = (
    ("inputs", maps(8, 6), "inputs must have one map for each of 3 spatial_scales, got 2"),
    ("spatial_scales", [0.25] * 9, "spatial_scales must have from 1 to 8 levels, got 9"),
    ("inputs", [*maps(8, 6), *maps(4, channels=2)], r"inputs\[2\] must have the type"),
    ("inputs", [*maps(8, 6), zeros(2, 3, 5)], "input must have 4 dimensions"),
    ("inputs", [*maps(8, 6), maps(4)[0].double()], r"inputs\[2\] must have the type"),
    ("levels", zeros(2), "levels must be int64, got float32"),
    ("levels", longs(0, 0, 0), r"levels must have shape \[2\], got \[3\]"),
    ("levels", longs(0, 3), r"levels\[1\] is 3, but there are 3 maps"),
    ("levels", longs(-1, 0), r"levels\[0\] is -1, but there are 3 maps"),
    ("boxes", torch.full((1, 5), 2.0), r"rois\[0, 0\] is batch index 2"),
)
# By operator: an argument, an invalid value, and the error.
CASES = {
    "nms": NMS,
    "batched_nms": (
        *NMS,
        ("idxs", longs(0, 0), r"idxs must have shape \[3\]"),
        ("idxs", zeros(3).bool(), "idxs must be integers, got bool"),
    ),
    "padded_nms": (
        ("boxes", zeros(3, 4), r"boxes must have shape \[B, N, 4\], got \[3, 4\]"),
        ("boxes", zeros(2, 3, 4).int(), "boxes must be floating point, got int32"),
        ("scores", zeros(2, 4), r"scores must have shape \[2, 3\], .*, got \[2, 4\]"),
        ("scores", zeros(2, 3).long(), "scores must be floating point, got int64"),
        ("groups", longs(0, 0, 0), r"groups must have shape \[2, 3\]"),
        ("groups", zeros(2, 3), "groups must be integers, got float32"),
        ("valid", zeros(2).bool(), r"valid must have shape \[2, 3\]"),
        ("valid", zeros(2, 3).byte(), "valid must be bool"),
        ("iou_threshold", math.nan, "iou_threshold must be zero or more"),
        ("limit", -1, "limit must be from 0 to .*, got -1"),
    ),
    "match_boxes": (
        ("truth", zeros(3, 4), r"truth must have shape \[B, G, 4\], got \[3, 4\]"),
        ("truth", zeros(2, 3, 5), r"truth must have shape \[B, G, 4\], got \[2, 3, 5\]"),
        ("truth", zeros(2, 3, 4).int(), "truth must be floating point, got int32"),
        ("valid", zeros(2, 4).bool(), r"valid must have shape \[2, 3\], .*got \[2, 4\]"),
        ("valid", zeros(2, 3), "valid must be bool, got float32"),
        ("candidates", zeros(4), r"candidates must have shape \[N, 4\] or \[2, N, 4\]"),
        ("candidates", zeros(3, 5, 4), r"candidates must have shape .*\[3, 5, 4\]"),
        ("candidates", zeros(5, 4).long(), "candidates must be floating point, got int64"),
    ),
    "heatmap_peaks": (
        ("maps", zeros(2, 9, 9), r"maps must have shape \[R, N, M, M\], got \[2, 9, 9\]"),
        ("maps", zeros(2, 3, 0, 9), r"maps must have sides from 1 to 1024, got"),
        ("maps", zeros(2, 1, 1, 1025), r"maps must have sides from 1 to 1024, got"),
        ("maps", zeros(2, 3, 9, 9).int(), "maps must be floating point, got int32"),
        ("boxes", zeros(3, 4), r"boxes must have shape \[2, 4\], "),
        ("boxes", zeros(2, 4).long(), "boxes must be floating point, got int64"),
    ),
    "paste_masks": (
        ("probs", zeros(2, 7), r"probs must have shape \[N, M, M\], got \[2, 7\]"),
        ("probs", zeros(2, 7, 0), "a mask's width must be from 1"),
        ("probs", zeros(2, 7, 7).int(), "probs must be floating point, got int32"),
        ("boxes", zeros(3, 4), r"boxes must have shape \[2, 4\], one for each mask"),
        ("boxes", zeros(2, 4).long(), "boxes must be floating point, got int64"),
        ("size", (-1, 5), "height must be from 0"),
        ("threshold", 0.0, "threshold must be more than 0, got 0"),
        ("threshold", math.nan, "threshold must be more than 0"),
    ),
    "sigmoid_focal_loss": (
        ("inputs", zeros(3).long(), "inputs must be floating point, got int64"),
        ("targets", zeros(1), r"targets must have the shape of inputs, \[3\], got \[1\]"),
        ("alpha", 1.5, "alpha must be from 0 to 1, or negative .*, got 1.5"),
        ("alpha", math.nan, "alpha must be from 0 to 1"),
        ("gamma", -1.0, "gamma must be zero or more, got -1"),
        ("gamma", math.inf, "gamma must be zero or more"),
    ),
    "crop_masks": (
        ("values", zeros(2, 2).double(), r"values must have shape \[V\], got \[2, 2\]"),
        ("values", zeros(9), "values must be float64, got float32"),
        ("pieces", zeros(1, 2).long(), "pieces must have one dimension"),
        ("pieces", zeros(3), "pieces must be int64, got float32"),
        ("instances", zeros(1, 2).long(), r"instances must have .*\[1, 2\]"),
        ("instances", zeros(3).int(), "instances must be int64, got int32"),
        ("frames", zeros(3, 6).long(), r"frames must have shape \[2, 6\]"),
        ("frames", zeros(2, 6), "frames must be int64"),
        ("index", zeros(3, 1).long(), "index must have one dimension"),
        ("index", zeros(3), "index must be int64"),
        ("index", longs(0, 1, 2), r"index\[2\] is 2, but there are 2 instances"),
        ("index", longs(0, -2, 0), r"index\[1\] is -2"),
        ("boxes", zeros(2, 4), r"boxes must have shape \[3, 4\], "),
        ("boxes", zeros(3, 4).long(), "boxes must be floating point, got int64"),
        ("resolution", 0, "resolution must be from 1 to 256, got 0"),
        ("resolution", 257, "resolution must be from 1 to 256, got 257"),
        ("soft", True, "instance 0 is polygons, and soft masks need run lengths"),
    ),
    "roi_align": POOL,
    "roi_pool": POOL,
    "pyramid_roi_align": PYRAMID_POOL,
    "pyramid_roi_pool": PYRAMID_POOL,
}
# Fallbacks do not check these.
ONLY_KERNELS = {
    "crop_masks": (
        ("pieces", longs(0, 8, 10**9), r"pieces must increase .*, got 1000000000 at"),
        ("pieces", longs(0, 8, 6), "pieces must increase"),
        ("pieces", longs(-8, 8, 8), "pieces must increase.* got -8 at place 0"),
        ("pieces", longs(0, 7, 10), "piece 0 must have an x and a y"),
        ("instances", longs(0, 1, 3), "instances must increase from 0 to the 2 pieces"),
        ("instances", longs(0, 0, 2), "instance 1 is run lengths and must have one"),
        ("frames", torch.tensor([NO_FRAME, [20, 0, 0, 0, 20, 20]]), r"frames\[1\] must have"),
        ("frames", torch.tensor([NO_FRAME, [-2, 9, 0, 0, 20, 20]]), r"frames\[1\] must have"),
        ("frames", torch.tensor([NO_FRAME, [9, 9, 0, 0, 20, 2**16]]), r"frames\[1\] must have"),
    ),
    "paste_masks": (("size", (2**20, 2**20), "too many pixels"),),
    "pyramid_roi_align": (("spatial_scales", [], "must have from 1 to 8 levels, got 0"),),
    "roi_align": (("sampling_ratio", 2**40, "sampling_ratio must be from 1"),),
}


def rows(table):
    return [(op, *row) for op, cases in table.items() for row in cases]


@pytest.mark.parametrize(("op", "argument", "value", "message"), rows(CASES) + rows(ONLY_KERNELS))
def test_kernels_name_the_argument(op, argument, value, message):
    with pytest.raises((RuntimeError, ValueError), match=message):
        getattr(ops, op)(**{**VALID[op], argument: value})


@pytest.mark.parametrize(("op", "argument", "value", "message"), rows(CASES))
def test_fallbacks_refuse_the_same(op, argument, value, message):
    name = f"{op.removeprefix('pyramid_')}|boxes|output"
    with use_fallback_ops(), pytest.raises((RuntimeError, ValueError), match=name):
        getattr(ops, op)(**{**VALID[op], argument: value})


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, zeros(2, 3, 7, 6), "grad must have shape"),
        (1, zeros(2, 5).double(), "rois must be float32 for float32 grad, got float64"),
        (1, torch.full((2, 5), 2.0), "batch index 2"),
        (1, torch.full((2, 5), -0.5), "batch index -0.5"),
        (2, longs(0, 1), "levels.* is 1, but there are 1 maps"),
        (3, [1.0, 0.5], "heights and widths must have one number for each of 2"),
        (6, -1, "batch_size must be from 0"),
        (8, [-1], "height must be from 0"),
        (9, [2**40], "width must be from 0"),
    ],
)
def test_arguments_of_the_gradient_of_roi_align(index, value, message):
    tensors = zeros(2, 3, 7, 7), zeros(2, 5), longs(0, 0)
    arguments = [*tensors, [1.0], 7, 7, 1, 3, [5], [5], 2, False]
    torch.ops.detlite.roi_align_backward.maps(*arguments)
    arguments[index] = value
    with pytest.raises(RuntimeError, match=message):
        torch.ops.detlite.roi_align_backward.maps(*arguments)


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (1, torch.full((2, 5), 2.0), "batch index 2"),
        (2, longs(0, 1), "levels.* is 1, but there are 1 maps"),
        (3, zeros(2, 3, 7, 7), "argmax must be int32, got float32"),
        (3, zeros(2, 3, 7, 6).int(), "argmax must have the shape of grad"),
        (3, torch.full((2, 3, 7, 7), 25).int(), "argmax must be from -1 to 24, got 25"),
        (3, torch.full((2, 3, 7, 7), -2).int(), "argmax must be from -1 to 24, got -2"),
    ],
)
def test_arguments_of_the_gradient_of_roi_pool(index, value, message):
    tensors = [zeros(2, 3, 7, 7), zeros(2, 5), longs(0, 0), zeros(2, 3, 7, 7).int()]
    tensors[index] = value
    with pytest.raises(RuntimeError, match=message):
        torch.ops.detlite.roi_pool_backward.maps(*tensors, [1.0], 7, 7, 1, 3, [5], [5])


def test_arguments_of_the_gradient_of_the_focal_loss():
    backward, x = torch.ops.detlite.sigmoid_focal_loss_backward, zeros(3)
    with pytest.raises(RuntimeError, match=r"grad must have the shape of inputs, \[3\], got \[2\]"):
        backward(zeros(2), x, x, 0.25, 2.0)
    with pytest.raises(RuntimeError, match="grad must be float32 for float16 inputs, got float16"):
        backward(x.half(), x.half(), x.half(), 0.25, 2.0)
