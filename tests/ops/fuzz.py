"""Call the CPU kernels with random inputs and compare all instruction sets.

    python tests/ops/fuzz.py --count 100000 --seed 0

Maps are small. Boxes are inside or outside of them, empty, inverted, huge, infinite or NaN.
`make sanitize` runs this script under AddressSanitizer and UndefinedBehaviorSanitizer. The last
line of the output names the seed of a failing input; `--seed SEED --count 1` repeats it.
"""

import argparse
import math
import os
import random
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from detlite import ops

VARIABLE = "DETLITE_CPU_CAPABILITY"
DTYPES = [torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64]
SPECIAL_VALUES = [0.0, -0.0, 1.0, -1.0, 7.5, 1e4, -1e4, 1e9, -1e9, 3e38, -3e38]
SPECIAL_VALUES += [math.inf, -math.inf]


def capabilities() -> list[str]:
    """Return the instruction sets of this processor, beginning with the default."""
    names = []
    for name in ("default", "avx2", "avx512"):
        os.environ[VARIABLE] = name
        try:
            ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
            names.append(name)
        except RuntimeError:
            pass
    return names


def random_map(rng: random.Random, dtype: torch.dtype, n: int, c: int) -> Tensor:
    h, w = rng.choice([0, 1, 2, 5, 9, 17, 33]), rng.choice([1, 2, 6, 15, 16, 17, 40])
    x = torch.randn(n, c, h + 1, w + 2).to(dtype)
    layout = rng.randrange(4)
    if layout == 1:
        return x[:, :, :h, :w].contiguous(memory_format=torch.channels_last)
    if layout == 2:
        return x.contiguous(memory_format=torch.channels_last)[:, :, 1:, 2:]
    if layout == 3:
        return x[:, :, :h, 1 : w + 1]
    return x[:, :, :h, :w].contiguous()


def hostile_boxes(rng: random.Random, count: int, extent: float) -> Tensor:
    corner = torch.rand(count, 2) * 1.5 * extent - 0.25 * extent
    boxes = torch.cat([corner, corner + torch.rand(count, 2) ** 2 * extent], dim=1)
    for _ in range(rng.choice([0, 0, 1, 4])):
        if count:
            value = rng.choice([*SPECIAL_VALUES, math.nan])
            boxes[rng.randrange(count), rng.randrange(4)] = value
    return boxes


def pooling(rng: random.Random) -> Callable[[], list[Tensor]]:
    """Return a call of a RoI operator and its gradient."""
    dtype = rng.choice(DTYPES)
    n, c = rng.randrange(1, 3), rng.choice([1, 3, 16, 32, 37, 70])
    levels = rng.choice([1, 1, 2, 4])
    maps = [random_map(rng, dtype, n, c).requires_grad_() for _ in range(levels)]
    scales = [rng.choice([1.0, 0.25, 0.3]) / 2**level for level in range(levels)]
    count = rng.choice([0, 1, 2, 7])
    boxes = hostile_boxes(rng, count, rng.choice([1, 20, 100, 2000]))
    rois = torch.cat([torch.randint(0, n, (count, 1)), boxes], dim=1)
    size = rng.choice([1, 2, 7]), rng.choice([1, 3, 7])
    sampling, aligned = rng.choice([-1, 0, 1, 2, 3, 70]), rng.random() < 0.5
    align = rng.random() < 0.6

    def run() -> list[Tensor]:
        if align:
            output = ops.pyramid_roi_align(maps, rois, size, scales, sampling, aligned)
        else:
            output = ops.pyramid_roi_pool(maps, rois, size, scales)
        return [output, *torch.autograd.grad(output.sum(), maps)]

    return run


def suppression(rng: random.Random) -> Callable[[], list[Tensor]]:
    count = rng.choice([0, 1, 5, 40, 300])
    boxes = hostile_boxes(rng, count, rng.choice([1e-18, 1.0, 30, 1000]))
    scores = torch.randint(0, rng.choice([3, 1000]), (count,)).float()
    idxs = torch.randint(-3, rng.choice([-2, 1, 40]), (count,))
    threshold = rng.choice([0.0, 1e-4, 0.1, 0.5, 0.7, 1.0, 1.5])
    valid, limit = torch.rand(count) > rng.choice([0, 0.3, 1]), rng.choice([0, 3, 50, 400])
    one_image = [x[None] for x in (boxes, scores, idxs, valid)]
    return lambda: [
        ops.nms(boxes, scores, threshold),
        ops.batched_nms(boxes, scores, idxs, threshold),
        *ops.padded_nms(*one_image, threshold, limit),
    ]


def matching(rng: random.Random) -> Callable[[], list[Tensor]]:
    images, truths, count = (
        rng.randrange(3),
        rng.choice([0, 1, 5, 40]),
        rng.choice([0, 1, 70, 1200]),
    )
    extent = rng.choice([1e-18, 1.0, 30, 1000])
    truth = hostile_boxes(rng, images * truths, extent).view(images, truths, 4)
    valid = torch.rand(images, truths) > rng.choice([0, 0.3, 1])
    candidates = hostile_boxes(rng, count, extent)
    return lambda: list(ops.match_boxes(truth, valid, candidates))


def pasting(rng: random.Random) -> Callable[[], list[Tensor]]:
    count, size = rng.choice([0, 1, 5]), (rng.randrange(1, 150), rng.randrange(1, 150))
    boxes = hostile_boxes(rng, count, rng.choice([1, 30, 300]))
    probs = torch.rand(count, rng.randrange(1, 30), rng.randrange(1, 30))
    return lambda: list(torch.ops.detlite.paste_masks_rle(probs, boxes, *size, 0.5))


def cropping(rng: random.Random, plain: bool = False) -> Callable[[], list[Tensor]]:
    """Return a call of crop_masks with polygons, or with run lengths that may be unordered.

    For a comparison with the fallback operators (`plain`), run lengths are ordered and crops are
    soft, so that rounding cannot change a cell between 0 and 1.
    """
    count, extent = rng.choice([0, 1, 7]), rng.choice([1, 30, 300, 1e5])
    boxes = hostile_boxes(rng, count, extent)
    if rng.random() < 0.5:
        values, frame = torch.randn(60, dtype=torch.float64) * extent, [0] * 6
        if rng.random() < 0.2:
            values[rng.randrange(60)] = rng.choice([*SPECIAL_VALUES, math.nan])
    else:
        sides = [rng.randrange(1, 150) for _ in range(4)]
        frame = [*sides[:2], rng.randrange(2), rng.randrange(2), *sides[2:]]
        values = torch.randint(-10, sides[0] * sides[1] + 10, (60,)).double()
        if rng.random() < 0.8 or plain:
            values = values.sort().values
    offsets = torch.tensor([0, 0, 10, 60]), torch.tensor([0, 0, 1, 2, 3])
    frames, index = torch.tensor([frame] * 4), torch.randint(-1, 4, (count,))
    resolution, soft = rng.choice([1, 7, 28, 65]), plain and frame[0] > 0
    return lambda: [ops.crop_masks(values, *offsets, frames, index, boxes, resolution, soft)]


def keypoints(rng: random.Random) -> Callable[[], list[Tensor]]:
    boxes = hostile_boxes(rng, rng.choice([0, 1, 3]), rng.choice([1, 30, 300]))
    maps = torch.randn(len(boxes), 2, rng.randrange(1, 60), rng.randrange(1, 60))
    return lambda: list(ops.heatmap_peaks(maps, boxes))


def focal_loss(rng: random.Random) -> Callable[[], list[Tensor]]:
    """Return a call of the focal loss of logits of any size and its gradient."""
    shape = rng.choice([(0,), (1,), (7, 3), (5, 80), (3, 37)])
    logits = (torch.randn(shape) * rng.choice([1, 10, 1e4])).to(rng.choice(DTYPES))
    if rng.random() < 0.1 and logits.numel():
        logits.view(-1)[0] = rng.choice([math.nan, math.inf, -math.inf])
    targets = torch.randint(0, 2, shape).to(logits.dtype)
    logits.requires_grad_()
    alpha, gamma = rng.choice([-1.0, 0.25, 0.5]), rng.choice([0.0, 0.5, 1.0, 2.0, 3.0])

    def run() -> list[Tensor]:
        loss = ops.sigmoid_focal_loss(logits, targets, alpha, gamma)
        return [loss, *torch.autograd.grad(loss.sum(), [logits])]

    return run


def differ(results: list[Tensor], expected: list[Tensor]) -> bool:
    """Return True if results differ by more than rounding, compared with their largest value."""
    for a, b in zip(results, expected, strict=True):
        finite = b.double()[b.double().isfinite()]
        spread = 1 + (finite.abs().max().item() if len(finite) else 0)
        tolerance = {torch.float64: 1e-9, torch.float32: 1e-4}.get(a.dtype, 0.05)
        if not a.is_floating_point():
            tolerance = 0
        a, b = a.double(), b.double()
        if not torch.allclose(a, b, rtol=tolerance, atol=tolerance * spread, equal_nan=True):
            return True
    return False


def check(seed: int, names: list[str]) -> None:
    """Compare one random input.

    Raises:
        AssertionError: if two instruction sets disagree.
    """
    rng = random.Random(seed)
    torch.manual_seed(seed)
    generators = [pooling, pooling, suppression, matching, pasting, cropping, keypoints, focal_loss]
    run = rng.choice(generators)(rng)
    os.environ[VARIABLE] = names[0]
    expected = run()
    for name in names[1:]:
        os.environ[VARIABLE] = name
        assert not differ(run(), expected), f"{name} and {names[0]} disagree"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = capabilities()
    for seed in range(args.seed, args.seed + args.count):
        try:
            check(seed, names)
        except (AssertionError, RuntimeError) as error:
            print(f"seed {seed}: {error}")
            return 1
    print(f"{args.count} inputs, {', '.join(names)}: no differences")
    return 0


if __name__ == "__main__":
    sys.exit(main())
