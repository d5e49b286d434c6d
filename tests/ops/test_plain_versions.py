"""The plain versions at the head of the kernels, compiled and compared with the kernels.

The plain version is the indented code of the first comment, up to the line "The kernel ...".
"""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from pycocotools import mask as rle_codec
from torch import Tensor

from detlite import ops
from tests.builders import random_boxes
from tests.ops.roi_cases import odd_rois, ordinary_rois

# Sizes and settings that the plain versions name.
PREAMBLE = """
#include <algorithm>
#include <cmath>
#include <vector>
using std::ceil; using std::floor;
static float min(float a, float b) { return a < b ? a : b; }
static float max(float a, float b) { return a > b ? a : b; }
constexpr int channels = 3, height = 11, width = 13, bins_y = 3, bins_x = 2;
constexpr int cells_y = 5, cells_x = 4;
constexpr float spatial_scale = 0.25, threshold = 0.5;
"""
# A launch of a CUDA kernel without barriers is a loop over its threads.
CUDA = """
#define __global__ static
struct Index { int x; };
static Index blockIdx, blockDim, threadIdx;
template <typename Kernel, typename... Arguments>
void launch(int threads, Kernel kernel, Arguments... arguments) {
  blockDim.x = 2;
  for (blockIdx.x = 0; blockIdx.x < threads / 2; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < 2; ++threadIdx.x) kernel(arguments...);
}
"""
HEIGHT, WIDTH, CHANNELS = 11, 13, 3


def plain_code(file: Path) -> str:
    """Return the code of the comment at the head of a kernel."""
    comment = re.match(r"(//.*\n)+", file.read_text())[0]
    code, end, _ = comment.partition("\n// The kernel")
    assert end, f"{file.name} begins without its plain version"
    return "\n".join(re.findall(r"^//   (.*)", code.partition(":\n//\n")[2], re.MULTILINE))


@pytest.fixture
def compiled(repo_root, tmp_path):
    """`compiled(files, settings, more)`: the library of the plain versions in csrc."""
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")

    def build(files: list[str], settings: str = "", more: str = "") -> ctypes.CDLL:
        code = "\n".join(plain_code(repo_root / "csrc" / file) for file in files)
        source, library = tmp_path / "plain.cpp", tmp_path / f"plain{len(settings)}.so"
        source.write_text(f'{PREAMBLE}{settings}\n{CUDA}\nextern "C" {{\n{code}\n}}\n{more}')
        command = ["c++", "-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC"]
        done = subprocess.run(
            [*command, str(source), "-o", str(library)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(library))

    return build


def pointer(x: Tensor) -> ctypes.c_void_p:
    assert x.is_contiguous()
    return ctypes.c_void_p(x.data_ptr())


@pytest.mark.parametrize(
    ("cuda", "sampling_ratio", "aligned"),
    [(False, 2, True), (False, 0, False), (True, 2, True), (True, 0, False)],
)
def test_roi_align(compiled, cuda, sampling_ratio, aligned):
    settings = f"constexpr int sampling_ratio = {sampling_ratio}, aligned = {int(aligned)};"
    maps = torch.randn(2, CHANNELS, HEIGHT, WIDTH)
    rois = torch.cat([ordinary_rois(30), odd_rois()[:3]])
    expected = ops.roi_align(maps, rois, (3, 2), 0.25, sampling_ratio, aligned)
    actual = torch.empty_like(expected)
    images, boxes = rois[:, 0].int(), rois[:, 1:].contiguous()
    if cuda:
        launch = """
        extern "C" void run(int n, float (*maps)[channels][height][width], int* images,
                            float (*rois)[4], float (*pooled)[channels][bins_y][bins_x]) {
          launch(n, roi_align_kernel, maps, images, rois, pooled);
        }
        """
        library = compiled(["cpu/roi_align.cpp", "cuda/roi_align.cu"], settings, launch)
        arguments = [pointer(x) for x in (maps, images, boxes, actual)]
        library.run(actual.numel(), *arguments)
    else:
        library = compiled(["cpu/roi_align.cpp"], settings)
        for image, box, pooled in zip(images, boxes, actual, strict=True):
            for c in range(CHANNELS):
                library.roi_align(pointer(maps[image, c]), pointer(box), pointer(pooled[c]))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_nms(compiled):
    boxes, scores = random_boxes(80, extent=30.0), torch.randint(0, 9, (80,)) / 8
    groups = torch.randint(0, 3, (80,), dtype=torch.int32)
    kept = torch.zeros(80, dtype=torch.int32)
    library = compiled(["cpu/nms.cpp"])
    arguments = [pointer(x) for x in (boxes, scores, groups)]
    count = library.nms(*arguments, len(boxes), ctypes.c_float(0.3), pointer(kept))
    expected = ops.batched_nms(boxes, scores, groups, 0.3)
    assert 0 < len(expected) < 80
    assert kept[:count].tolist() == expected.tolist()


def test_nms_on_cuda(compiled):
    boxes = random_boxes(50, extent=30.0)
    overlaps, kept = torch.zeros(50, 50, dtype=torch.bool), torch.zeros(50, dtype=torch.bool)
    library = compiled(
        ["cpu/nms.cpp", "cuda/nms.cu"],
        more="""
        extern "C" void run(float (*boxes)[4], int count, bool* overlaps, bool* kept) {
          launch(count * count, overlap, boxes, count, 0.3f, overlaps);
          resolve(overlaps, count, kept);
        }
        """,
    )
    library.run(pointer(boxes), len(boxes), pointer(overlaps), pointer(kept))
    expected = ops.nms(boxes, torch.arange(50, 0, -1.0), 0.3)
    assert 0 < len(expected) < 50
    assert kept.nonzero()[:, 0].tolist() == expected.tolist()


def test_paste_masks(compiled):
    probs, boxes = torch.rand(40, 5, 4), random_boxes(40, extent=12.0, sides=(0.5, 12.0)) - 2
    image = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
    library = compiled(["cpu/paste_masks.cpp"])
    pasted = 0
    for prob, box, rle in zip(probs, boxes, ops.paste_masks(probs, boxes, (11, 13)), strict=True):
        library.paste(pointer(prob), pointer(box), pointer(image))
        assert np.array_equal(rle_codec.decode(rle), image.numpy())
        pasted += int(image.sum())
    assert pasted > 200
