"""Test registration, lookup and import on demand."""

import sys

import pytest

from detlite.config import ConfigError
from detlite.registry import Registry


@pytest.fixture
def colors() -> Registry:
    registry: Registry = Registry("color", on_demand={"Blue": "blue_module"})
    registry.register("red", "crimson")(lambda: "r")
    registry.register("green")(lambda: "g")
    return registry


def test_get_returns_the_builder_for_each_of_its_names(colors):
    assert colors.get("red", "KEY")() == "r"
    assert colors.get("crimson", "KEY") is colors.get("red", "KEY")


def test_an_unknown_name_is_reported_with_a_similar_one_if_any(colors):
    message = r"^K: unknown color 'gren'.*did you mean 'green'\?.* known: Blue, crimson, green, red"
    with pytest.raises(ConfigError, match=rf"(?s){message}.*IMPORTS"):
        colors.get("gren", "K")
    with pytest.raises(ConfigError, match="unknown color 'xyzzy'; known: "):
        colors.get("xyzzy")


def test_a_name_is_registered_only_once(colors):
    with pytest.raises(ValueError, match="color 'red' is already registered"):
        colors.register("red")(lambda: None)


@pytest.mark.parametrize("name", ["Blue", "Blue.dark"])
def test_module_is_imported_on_demand(colors, name, tmp_path, monkeypatch):
    source = "import test_registry_target\ntest_registry_target.register('Blue', 'Blue.dark')('b')"
    (tmp_path / "blue_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "test_registry_target", colors)
    monkeypatch.delitem(sys.modules, "blue_module", raising=False)
    assert "Blue" in colors
    assert colors.get(name) == "b"
    assert "blue_module" in sys.modules
    del sys.modules["blue_module"]
    assert colors.get(name) == "b"
    assert "blue_module" not in sys.modules  # not imported again


def test_module_that_does_not_register_the_name_is_an_unknown_name(colors, tmp_path, monkeypatch):
    (tmp_path / "blue_module.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="unknown color 'Blue'"):
        colors.get("Blue")
