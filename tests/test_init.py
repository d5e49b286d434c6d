"""Test the package's public names, which are imported on first use."""

import pytest

import detlite
from tests.builders import run_python


@pytest.mark.parametrize("module", ["detlite", "detlite.config", "detlite.conventions"])
def test_import_is_free_of_torch_and_numpy(repo_root, module):
    program = f"import sys, {module}; print(sorted({{'torch', 'numpy'}} & sys.modules.keys()))"
    assert run_python(program, cwd=repo_root, check=True).stdout == "[]\n"


def test_public_names_are_complete():
    assert set(detlite.__all__) == set(detlite._MODULES)
    for name in detlite.__all__:
        assert callable(getattr(detlite, name))
    assert {*detlite.__all__, "ops", "__version__"} <= {*dir(detlite)}
    assert detlite.ops.nms is not None


def test_type_checkers_see_the_public_names(repo_root):
    source = (repo_root / "detlite" / "__init__.py").read_text()
    checked = source.split("if TYPE_CHECKING:")[1].split("__version__")[0]
    for name, module in detlite._MODULES.items():
        assert any(
            f"from {module} import" in line and name in line for line in checked.splitlines()
        )


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="module 'detlite' has no attribute 'predictor'"):
        _ = detlite.predictor


@pytest.mark.slow
def test_kernels_are_imported_without_importing_torch_first(repo_root):
    program = "from detlite import _C; print(_C.nms.__name__)"
    assert run_python(program, cwd=repo_root, check=True).stdout == "nms\n"


@pytest.mark.slow
def test_prediction_does_not_import_torchvision():
    """The import of torchvision takes longer than that of everything else in detlite."""
    modules = "detlite.inference.predictor, detlite.apps.batch_predict.predict_run"
    program = f"import sys, {modules}; print({{'torchvision', 'sympy'}} & {{*sys.modules}})"
    assert run_python(program, check=True).stdout == "set()\n"
