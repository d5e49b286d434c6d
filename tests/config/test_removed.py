"""Removed keys and values say why or what to use instead, and may be off in stored configs."""

import re
from pathlib import Path

import pytest

from detlite.config import KEYS, ConfigError, config_from, default_config, load_config
from detlite.config.removed import KEYS as REMOVED
from detlite.config.removed import VALUES
from detlite.data.datasets.catalog import locate_dataset

ROOT = Path(__file__).parents[2]


def turned_on(off):
    """Return another value than the one that turns a key off."""
    if isinstance(off, bool):
        return not off
    return [0.5, 2.0] if isinstance(off, tuple | list) else off + type(off)(3)


ON = {name: turned_on(off) for name, (off, _) in REMOVED.items()}


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_key_is_an_error_unless_it_is_off(tmp_path, name):
    off, reason = REMOVED[name]
    stored = list(off) if isinstance(off, tuple) else off
    for value in (off, str(off), stored):
        assert load_config(None, [name, value]) == load_config()
    message = rf"{name} .*: removed, {re.escape(reason)}"
    with pytest.raises(ConfigError, match=f"overrides: {message}"):
        load_config(None, [name, ON[name]])
    file, (section, _, key) = tmp_path / "config.yaml", name.partition(".")
    file.write_text(f"{section}: {{{key}: {ON[name]}}}")
    with pytest.raises(ConfigError, match=rf"config\.yaml: {message}"):
        load_config(file)


@pytest.mark.parametrize(("name", "value"), VALUES)
def test_a_removed_value_is_an_error(name, value):
    for spelling in (value, value.capitalize()):
        with pytest.raises(ConfigError, match=f"{name} {spelling}: removed, it gained nothing: "):
            load_config(None, [name, spelling])


def test_stored_weights_do_not_need_the_removed_settings_of_their_training():
    stored = {"SOLVER.OPTIMIZER": "Muon", "SEED": 3, "TEST.MASK_CONFIDENCE": 1.0}
    stored |= {k: on for k, on in ON.items() if not k.startswith(("TEST.", "MODEL.FBNET."))}
    cfg = config_from(stored, Path("model.pth"))
    assert cfg.SEED == 3
    assert cfg.SOLVER.OPTIMIZER == default_config().SOLVER.OPTIMIZER
    for name, value in (("TEST.NMS.METHOD", "fusion"), ("MODEL.FBNET.SCALE_FACTOR", 0.5)):
        with pytest.raises(ConfigError, match=rf"model\.pth: {name} {value}: removed"):
            config_from({name: value}, Path("model.pth"))
    with pytest.raises(ConfigError, match=r"overrides: INPUT\.MOSAIC_PROB 0\.5: removed"):
        config_from(stored, Path("model.pth"), ["INPUT.MOSAIC_PROB", 0.5])


def test_no_removed_key_is_in_the_schema_and_every_record_exists():
    assert not {key.name for key in KEYS} & REMOVED.keys()
    assert {name for name, _ in VALUES} <= {key.name for key in KEYS}
    reasons = [*(reason for _, reason in REMOVED.values()), *VALUES.values()]
    records = {name for reason in reasons for name in re.findall(r"benchmarks/\S+\.md", reason)}
    assert records
    assert all((ROOT / record).is_file() for record in records)


def test_a_removed_type_of_datasets_says_what_to_use_instead():
    entry = {"name": "photos", "type": "webdataset", "shards": "a.tar", "categories": "c.json"}
    cfg = load_config(None, ["DATASETS.CATALOG", [entry]])
    with pytest.raises(ConfigError, match=r"photos: the type webdataset was removed: .*tar://"):
        locate_dataset(cfg, "photos")
