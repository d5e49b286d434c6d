"""Test that notebooks run from the first cell to the last and are stored without outputs."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: detlite[docs]")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: detlite[docs]")
pytest.importorskip("ipykernel", reason="ipykernel is not installed: detlite[docs]")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.name)
def test_stored_without_outputs(notebook):
    cells = [cell for cell in nbformat.read(notebook, 4).cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.name)
def test_runs_on_generated_images(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("MINUTES", "0.1")
    content = nbformat.read(notebook, 4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(
        content, timeout=300, kernel_name="python3", resources=resources
    ).execute()
    outputs = [output for cell in content.cells for output in cell.get("outputs", [])]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "60 images" in printed
    assert "AP " in printed
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3 + 1 + 3
    assert (tmp_path / "output" / "notebook" / "model_final.pth").is_file()
