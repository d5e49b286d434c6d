import pytest
import torch

from detlite import _C
from detlite.ops import assign_levels, pyramid_roi_align, pyramid_roi_pool, roi_align, roi_pool
from detlite.ops.dispatch import compute_dtype
from tests.ops.roi_cases import DTYPES, OPCHECK_LAYOUTS, SCALES, TOLERANCE, odd_rois


def pyramid(dtype=torch.float32, layout="contiguous", channels=37, batch=2):
    maps = [torch.randn(batch, channels, 40 // 2**n, 48 // 2**n).to(dtype) for n in range(4)]
    if layout == "channels_last":
        return [x.contiguous(memory_format=torch.channels_last) for x in maps]
    if layout == "mixed":  # counts as channels-last
        return [maps[0], *(x.contiguous(memory_format=torch.channels_last) for x in maps[1:])]
    if layout == "transposed":
        return [x.transpose(2, 3).contiguous().transpose(2, 3) for x in maps]
    if layout == "strided":
        return [torch.cat([x, x], dim=3)[..., : x.shape[3]] for x in maps]
    return maps


def rois_of_all_sizes(count=40, dtype=torch.float32):
    corner = torch.rand(count, 2) * 150
    side = 2 ** (3 + 7 * torch.rand(count, 1)) * torch.tensor([[1.2, 0.8]])
    image = torch.randint(0, 2, (count, 1))
    return torch.cat([image, corner, corner + side], dim=1).to(dtype)


ALIGN = [
    pytest.param(
        *(pyramid_roi_align, roi_align, form, dtype),
        marks=pytest.mark.slow, id=f"align-{form[0]}-{str(dtype)[6:]}",
    )
    for form in ((2, False), (0, True))
    for dtype in DTYPES
]  # fmt: skip
POOL = pytest.param(pyramid_roi_pool, roi_pool, (), torch.float32, id="pool")


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "strided"])
@pytest.mark.parametrize(("op", "single", "form", "dtype"), [*ALIGN, POOL])
def test_equals_one_call_per_level(device, op, single, form, dtype, layout):
    maps = [x.to(device).requires_grad_() for x in pyramid(dtype, layout)]
    rois = torch.cat([rois_of_all_sizes(), odd_rois()]).to(device, compute_dtype(dtype))
    output = op(maps, rois, (5, 4), SCALES, *form)
    expected = torch.cat(
        [
            single(maps[level], roi[None], (5, 4), SCALES[level], *form)
            for roi, level in zip(rois, assign_levels(rois[:, 1:], SCALES).tolist(), strict=True)
        ]
    )
    torch.testing.assert_close(output, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert output.is_contiguous() != (layout == "channels_last")
    weights = torch.randn_like(output)
    grads = torch.autograd.grad((output * weights).sum(), maps)
    expected_grads = torch.autograd.grad((expected * weights).sum(), maps)
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 2e-1}.get(dtype, 1e-4)
    for grad, wanted in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [*OPCHECK_LAYOUTS, "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(device, layout, dtype):
    maps = [x.to(device).requires_grad_() for x in pyramid(dtype, layout, channels=3)]
    rois = rois_of_all_sizes(5).to(device)
    levels = assign_levels(rois[:, 1:], SCALES)
    heights, widths = [x.shape[2] for x in maps], [x.shape[3] for x in maps]
    grad = torch.randn(5, 3, 3, 2, dtype=dtype, device=device)
    where, pool, sizes = (rois, levels), (SCALES, 3, 2), (2, 3, heights, widths)
    torch.library.opcheck(_C.roi_align_forward.maps, (maps, *where, *pool, 2, True))
    torch.library.opcheck(_C.roi_align_backward.maps, (grad, *where, *pool, *sizes, 2, True))
    detached = [x.detach() for x in maps]
    torch.library.opcheck(_C.roi_pool_forward.maps, (maps, *where, *pool, True))
    torch.library.opcheck(_C.roi_pool_forward.maps, (detached, *where, *pool, False))
    _, argmax = _C.roi_pool_forward.maps(detached, *where, *pool, True)
    torch.library.opcheck(_C.roi_pool_backward.maps, (grad, *where, argmax, *pool, *sizes))


@pytest.mark.parametrize("op", [pyramid_roi_align, pyramid_roi_pool])
@pytest.mark.parametrize("count", [3, 300])
def test_layout_does_not_change_results(op, count):
    # Few RoIs are packed one by one from a contiguous map, many together.
    maps = [torch.randn(2, 70, 48 // 2**level, 64 // 2**level) for level in range(3)]
    corner = torch.rand(count, 2) * 160
    boxes = torch.cat([corner, corner + 8 * 30 ** torch.rand(count, 2)], dim=1)
    rois = torch.cat([torch.randint(0, 2, (count, 1)), boxes], dim=1)
    args = (rois, 7, [1 / 4, 1 / 8, 1 / 16])
    expected = op([x.contiguous(memory_format=torch.channels_last) for x in maps], *args)
    output = op(maps, *args)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
