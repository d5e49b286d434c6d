"""Test that notebooks run from the first cell to the last and are stored without outputs."""

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: detlite[docs]")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: detlite[docs]")
pytest.importorskip("ipykernel", reason="ipykernel is not installed: detlite[docs]")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def read(notebook: Path) -> Any:
    return nbformat.read(notebook, as_version=4)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.name)
def test_stored_without_outputs(notebook):
    for cell in read(notebook).cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.name)
def test_runs_on_generated_images(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("MINUTES", "0.1")
    content = read(notebook)
    nbclient.NotebookClient(
        content, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in content.cells for output in cell.get("outputs", [])]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "60 images" in printed
    assert "AP " in printed
    images = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(images) == 3 + 1 + 3
    assert (tmp_path / "output" / "notebook" / "model_final.pth").is_file()
