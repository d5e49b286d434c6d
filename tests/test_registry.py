from __future__ import annotations

import pytest

from detlite.config import ConfigError
from detlite.registry import Registry


@pytest.fixture
def colours() -> Registry:
    registry: Registry = Registry("colour")
    registry.register("red", "crimson")(lambda: "r")
    registry.register("green")(lambda: "g")
    return registry


def test_builder_is_found_under_each_of_its_names(colours):
    assert colours.get("red", "KEY")() == "r"
    assert colours.get("crimson", "KEY") is colours.get("red", "KEY")


def test_decorator_returns_the_builder(colours):
    @colours.register("blue")
    def build_blue() -> str:
        return "b"

    assert build_blue() == "b"


def test_unknown_name_tells_key_nearest_and_known_names(colours):
    with pytest.raises(ConfigError) as error:
        colours.get("gren", "MODEL.COLOUR")
    message = str(error.value)
    assert message.startswith("MODEL.COLOUR: no colour is called 'gren'")
    assert "did you mean 'green'?" in message
    assert "known: crimson, green, red" in message
    assert "IMPORTS" in message


def test_unknown_name_far_from_all_gets_no_hint(colours):
    with pytest.raises(ConfigError) as error:
        colours.get("xyzzy", "MODEL.COLOUR")
    assert "did you mean" not in str(error.value)


def test_name_is_taken_once(colours):
    with pytest.raises(ValueError, match="colour 'red' is registered already"):
        colours.register("red")(lambda: None)
