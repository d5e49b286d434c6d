"""Test loading of the compiled kernels, and detlite without them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from detlite import _C
from detlite.ops import dispatch, kernels, paste_masks, sigmoid_focal_loss

# Trains one step, predicts, evaluates and exports with `detlite._C` hidden.
PROGRAM = """
import json, sys
sys.modules["detlite._C"] = None
import torch
from detlite import ops
from detlite.config import load_config
from detlite.modeling.build import build_model

torch.manual_seed(0)
model = build_model(load_config(None, json.loads(sys.argv[1])))
images = [torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8)] * 2
masks = torch.zeros(1, 64, 96, dtype=torch.uint8)
masks[:, 10:40, 20:60] = 1
target = {"boxes": torch.tensor([[20.0, 10, 60, 40]]), "labels": torch.tensor([1]), "masks": masks}
losses = model.train()(images, [target] * 2)
sum(losses.values()).backward()
gradients = [p.grad for p in model.parameters() if p.grad is not None]
with torch.no_grad():
    detections = model.eval()(images)

rles = ops.paste_masks(torch.ones(1, 7, 7), torch.tensor([[1.0, 2, 5, 6]]), (8, 9))

class Pool(torch.nn.Module):
    def forward(self, x, rois):
        return ops.roi_align(x, rois, 3, 0.25, 2, True)

arguments = torch.rand(1, 2, 8, 8), torch.tensor([[0.0, 1, 2, 20, 30], [-1, 0, 0, 9, 9]])
program = torch.export.export(Pool(), arguments)
print(json.dumps({
    "kernels": ops.has_kernels("cpu"),
    "losses": {name: value.item() for name, value in losses.items()},
    "finite": all(bool(g.isfinite().all()) for g in gradients),
    "masks": list(detections[0]["masks"].shape[1:]),
    "pasted": rles[0]["counts"],
    "schemas": [
        str(s) for s in torch._C._jit_get_all_schemas() if s.name.startswith("detlite::")
    ],
    "exported": torch.equal(program.module()(*arguments), Pool()(*arguments)),
}))
"""


# The process takes five seconds.
@pytest.fixture(scope="module", params=[pytest.param("process", marks=pytest.mark.slow)])
def without_kernels(repo_root, tmp_path_factory):
    from tests.builders import TINY, TINY_FPN

    options = [item for pair in {**TINY, **TINY_FPN}.items() for item in pair]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(options)],
        cwd=repo_root, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_a_model_trains_and_predicts_without_kernels(without_kernels):
    result, _ = without_kernels
    assert not result["kernels"]
    assert {"loss_mask", "loss_classifier"} <= result["losses"].keys()
    assert all(loss > 0 for loss in result["losses"].values())
    assert result["finite"]
    assert result["masks"] == [1, 64, 96]


def test_pasting_and_export_work_without_kernels(without_kernels):
    result, _ = without_kernels
    boxes = torch.tensor([[1.0, 2, 5, 6]])
    assert result["pasted"] == paste_masks(torch.ones(1, 7, 7), boxes, (8, 9))[0]["counts"]
    assert result["exported"]


def test_missing_kernels_warn_once(without_kernels):
    _, stderr = without_kernels
    assert stderr.count("detlite uses torchvision's and PyTorch's own operators") == 1
    assert "the results are the same, but it is slower" in stderr


@pytest.mark.slow
def test_variable_disables_the_kernels_without_a_warning(repo_root):
    program = "from detlite import ops; print(ops.has_kernels('cpu'))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=repo_root, text=True, capture_output=True,
        env={**os.environ, "DETLITE_KERNELS": "0"},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_fallbacks_have_the_schemas_of_the_kernels(without_kernels):
    result, _ = without_kernels
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("detlite::")]
    # The results have no names without the kernels, and all sizes are plain numbers.
    parts = [str(schema).partition("->") for schema in schemas]
    expected = [f"{head}->{re.sub('Tensor [a-z_]+', 'Tensor', tail)}" for head, _, tail in parts]
    assert sorted(result["schemas"]) == sorted(text.replace("SymInt", "int") for text in expected)


def test_module_has_all_operators():
    names = {name.partition(".")[0] for name in dispatch.FALLBACKS}
    assert {name for name in dir(_C) if not name.startswith("__")} == names
    assert all(getattr(_C, name) is getattr(torch.ops.detlite, name) for name in names)


def test_unknown_capability_raises(monkeypatch):
    monkeypatch.setenv("DETLITE_CPU_CAPABILITY", "sse9")
    # The focal loss reads the variable outside of its parallel loop. torch 2.11 loses the message
    # of an exception inside a parallel loop.
    with pytest.raises(RuntimeError, match=r"'sse9', but this processor and build support .*def"):
        sigmoid_focal_loss(torch.zeros(1), torch.zeros(1, dtype=torch.int64))


def test_kernels_of_other_sources_are_rejected():
    with pytest.raises(ImportError, match=r"kernels lack new_operator: .* Run `pip install"):
        dispatch.operator("new_operator.maps", "any", print)(print)


def test_oldest_torch_is_the_same_everywhere(repo_root):
    oldest = ".".join(map(str, kernels.OLDEST_TORCH))
    project, build = ((repo_root / name).read_text() for name in ("pyproject.toml", "setup.py"))
    assert set(re.findall(r'"torch>=([\d.]+)"', project)) == {oldest}
    assert f"OLDEST_TORCH = {kernels.OLDEST_TORCH}\n" in build


@pytest.fixture
def built(monkeypatch, tmp_path) -> Path:
    """Return the package folder of an installation with a file of kernels."""
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "ops" / "kernels.py"))
    (tmp_path / "_C.abi3.so").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("cuda", "hip", "gpu"), [("13.2", None, "CUDA 13.2"), (None, "7.0", "ROCm 7.0")]
)
@pytest.mark.usefixtures("built")
def test_kernels_that_cannot_be_loaded(monkeypatch, cuda, hip, gpu):
    monkeypatch.setattr(torch, "__version__", "2.10.1+x")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    message = kernels.why_unavailable(ImportError("undefined symbol: f"))
    assert f"cannot be loaded with torch 2.10.1+x ({gpu}): undefined symbol: f. They" in message
    assert "need torch >= 2.11 for the CUDA or ROCm that they were built for" in message


def test_kernels_that_are_not_built(built, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    (built / "_C.abi3.so").unlink()
    (built / "_C.pyi").touch()  # not a library
    assert kernels.why_unavailable(ImportError()).startswith(
        "the compiled kernels (detlite._C) are not built. To build them, run `pip install "
    )


def test_sources_that_hide_the_installed_package(built, tmp_path, monkeypatch):
    (built / "_C.abi3.so").unlink()
    installed = tmp_path / "site-packages" / "detlite"
    installed.mkdir(parents=True)
    (installed / "_C.abi3.so").touch()
    monkeypatch.setattr(sys, "path", [str(built.parent), str(installed.parent)])
    message = kernels.why_unavailable(ImportError())
    assert message.startswith(f"Python imports detlite from its sources in {built}, which hide")
    assert f"in {installed}. Start Python in another folder" in message


@pytest.mark.slow
def test_a_broken_library_is_reported_in_a_line(repo_root, tmp_path):
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(repo_root / "detlite", tmp_path / "detlite", ignore=ignored)
    (tmp_path / "detlite" / "_C.abi3.so").write_bytes(b"not a library")
    done = subprocess.run(
        [sys.executable, "-c", "import detlite.ops"], cwd=tmp_path, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("the compiled kernels (detlite._C) cannot be loaded with torch ")
