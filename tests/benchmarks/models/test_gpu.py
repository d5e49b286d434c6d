"""The benchmark of a GPU, as a dry run on a CPU."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.models.gpu import MixedTraining, kernel_kind


@pytest.mark.slow
def test_a_dry_run_on_a_cpu_writes_the_page(config, small, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.models.gpu.matmul_peak", lambda *args: 1e9)
    monkeypatch.setattr("benchmarks.models.gpu.compiler_works", lambda device: True)
    compiled: list[object] = []  # compiling takes minutes
    for module in ("gpu", "training"):
        monkeypatch.setattr(f"benchmarks.models.{module}.compile_losses", compiled.append)
    options = ["--device", "cpu", "--short", "64", "--batches", "2", "1", "--images", "4",
               "--turns", "1", "--dtype", "float32", "--config", str(config)]  # fmt: skip
    opts = [str(item) for item in (*small, "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 5)]
    assert main(["gpu", "--output", str(tmp_path), *options, *opts]) == 0
    rows = json.loads((tmp_path / "gpu.json").read_text())
    assert [(row["task"], row["mode"].split()[0]) for row in rows] == [
        *[("training", "2")] * 2, ("training", "1"), ("training from JPEGs", "2"),
        ("inference", "1"), ("inference", "16"), ("evaluation", "4"),
        ("training from JPEGs", "2"), ("training", "1"),
    ]  # fmt: skip
    assert len(compiled) == 3
    assert all(row["images_per_s"] > 0 for row in rows)
    page = (tmp_path / "gpu.md").read_text()
    assert "convolution and matrix product" in page
    assert "python -m benchmarks gpu" in page


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("triton_poi_fused__to_copy_add_convolution_relu_3", "elementwise"),
        ("void at::native::vectorized_elementwise_kernel<4, Add<float>>", "elementwise"),
        ("sm90_xmma_fprop_implicit_gemm_bf16", "convolution and matrix product"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("void detlite::roi_align_kernel<float>", "detlite"),
        ("void at::native::max_pool_forward_nhwc", "other"),
    ],
)
def test_kinds_of_kernels(kernel, kind):
    assert kernel_kind(kernel) == kind


def test_sizes_alternate_between_landscape_and_portrait(config, small):
    training = MixedTraining(config, small, batch=1, short=48)
    batches = training.batches(training.cfg(), lambda batch: batch)
    sizes = [tuple(next(batches)[0][0].shape[1:]) for _ in range(5)]
    assert sizes == [(48, 64), (48, 72), (48, 64), (64, 48), (48, 64)]
