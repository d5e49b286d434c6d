"""The benchmark of a GPU, as a dry run on a CPU."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.models.gpu import GpuBenchmark, GpuRow, MixedTraining, kernel_kind, kernel_times
from detlite.config import ConfigError


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
    assert [(row["task"], row["mode"].split(",")[0]) for row in rows] == [
        ("training", "2 images"),
        ("training", "2 images"),
        ("training", "1 images"),
        ("training from JPEGs", "2 images"),
        ("inference", "1 images to run lengths"),
        ("inference", "16 images to run lengths"),
        ("evaluation", "4 images to metrics"),
        ("training from JPEGs", "2 images"),
        ("training", "1 images"),
    ]
    assert len(compiled) == 3
    assert all(row["images_per_s"] > 0 for row in rows)
    page = (tmp_path / "gpu.md").read_text()
    assert "188 to 198" in page
    assert "convolution and matrix product" in page
    assert "python -m benchmarks gpu" in page


def test_a_case_that_cannot_be_compiled_is_left_out(monkeypatch, caplog):
    def train(self, batch, compiled, peak):
        if compiled:
            raise ConfigError("torch cannot compile this model: set MODEL.COMPILE False")
        return GpuRow("training", "eager", 1.0, 1.0)

    for name in ("_loop", "_infer", "_evaluate"):
        monkeypatch.setattr(GpuBenchmark, name, lambda *args: GpuRow("other", "", 1.0, 1.0))
    monkeypatch.setattr(GpuBenchmark, "_train", train)
    monkeypatch.setattr("benchmarks.models.gpu.matmul_peak", lambda *args: 1e9)
    monkeypatch.setattr("benchmarks.models.gpu.compiler_works", lambda device: True)
    monkeypatch.setattr("benchmarks.models.gpu.generated_dataset", lambda *args: None)
    rows = [row.task for row in GpuBenchmark("a.yaml", device="cpu", batches=(2, 1)).rows()]
    assert rows == ["training", "training", *["other"] * 5]
    assert "cannot compile" in caplog.text


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("triton_poi_fused__to_copy_add_convolution_relu_3", "elementwise"),
        (
            "void at::native::vectorized_elementwise_kernel<4, Add<float>>",
            "elementwise",
        ),
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


def test_kernel_times_include_the_time_without_a_kernel():
    times = kernel_times(lambda: None, 2, "cpu")
    assert times["idle"] >= 0
