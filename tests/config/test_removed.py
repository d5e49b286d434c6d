"""Removed keys may be off in stored configs, and are errors otherwise."""

import re
from pathlib import Path

import pytest

from detlite.config import KEYS, ConfigError, config_from, load_config
from detlite.config.removed import NO_EFFECT, OFF


def turned_on(off):
    """Return another value than the one that turns a key off."""
    if isinstance(off, bool):
        return not off
    return [0.5, 2.0] if isinstance(off, tuple | list) else off + type(off)(3)


ON = {name: turned_on(off) for name, off in OFF.items()}


@pytest.mark.parametrize("name", OFF)
def test_a_removed_key_is_an_error_unless_it_is_off(tmp_path, name):
    off = OFF[name]
    stored = list(off) if isinstance(off, tuple) else off
    for value in (off, str(off), stored):
        assert load_config(None, [name, value]) == load_config()
    message = rf"{name} .*: this key was removed, and only {re.escape(repr(off))} is possible"
    with pytest.raises(ConfigError, match=f"overrides: {message}"):
        load_config(None, [name, ON[name]])
    file, (section, _, key) = tmp_path / "config.yaml", name.partition(".")
    file.write_text(f"{section}: {{{key}: {ON[name]}}}")
    with pytest.raises(ConfigError, match=rf"config\.yaml: {message}"):
        load_config(file)


def test_stored_weights_do_not_need_the_removed_settings_of_their_training():
    stored = {"SOLVER.OPTIMIZER": "Muon", "SEED": 3, "TEST.MASK_CONFIDENCE": 1.0}
    stored |= {k: on for k, on in ON.items() if not k.startswith(("TEST.", "MODEL.FBNET."))}
    assert config_from(stored, Path("model.pth")).SEED == 3
    with pytest.raises(
        ConfigError, match=r"model\.pth: MODEL\.FBNET\.SCALE_FACTOR 0\.5: .* removed"
    ):
        config_from({"MODEL.FBNET.SCALE_FACTOR": 0.5}, Path("model.pth"))
    with pytest.raises(ConfigError, match=r"overrides: INPUT\.MOSAIC_PROB 0\.5: .* removed"):
        config_from(stored, Path("model.pth"), ["INPUT.MOSAIC_PROB", 0.5])


def test_no_removed_key_is_in_the_schema():
    assert not {key.name for key in KEYS} & (OFF.keys() | NO_EFFECT.keys())
