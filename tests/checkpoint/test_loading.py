"""Loading checkpoints into models, and building models from checkpoints."""

import math
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from detlite.checkpoint import files
from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.files import read_checkpoint, save_checkpoint
from detlite.checkpoint.loading import (
    build_model_from_checkpoint,
    load_weights,
    resolve_checkpoint_path,
)
from detlite.checkpoint.stored_config import config_of
from detlite.config import ConfigError
from detlite.errors import CheckpointError
from detlite.modeling.build import build_model
from tests.builders import tiny_config, write_weights
from tests.engine.toy import ToyDetector, assert_equal

NORM = "norm.bias"
CATEGORIES = [{"id": 7, "name": "red"}, {"id": 9, "name": "green"}]


PACKED = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
DAMAGED = torch.tensor([0.0, math.nan, 0.0, math.inf])
TABLE = r"""9 of 11 entries fit
 +entry +in the file +in the model
  missing in the file +norm\.bias +\[4\]
  other shape +body\.weight +\[4, 3, 5, 5\] +\[4, 3, 3, 3\]
  unknown to the model +body\.extra +\[2\]$"""


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"body.extra": torch.zeros(2), NORM: None, "body.weight": torch.zeros(4, 3, 5, 5)},
         {"reinit_heads": True}, TABLE),
        ({"depth.weight": torch.zeros(2)}, {}, r"11 of 11 entries fit\. The file only has"),
        ({f"x{n}": torch.zeros(1) for n in range(100)}, {}, r"\.\.\. and 60 more"),
        ({NORM: PACKED}, {}, f"{NORM} is torch.float4_e2m1fn_x2, which torch cannot convert"),
        ({NORM: DAMAGED}, {}, f"{NORM} contains NaN or infinity"),
        ({NORM: torch.ones(4, dtype=torch.int8)}, {}, rf"{NORM} is torch\.int8, not float"),
        (ToyDetector(5, 4), {}, r"MODEL\.REINIT_HEADS True.*cls_score\.weight  \[5, 4\]"),
        (ToyDetector(5, 4), {"training_state": True}, "differs: use the config of its training"),
        (ToyDetector(3, 6), {"reinit_heads": True},
         r"entries fit((?!REINIT_HEADS).)*body\.weight((?!REINIT_HEADS).)*$"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit(toy, saved, change, options, message):
    before = deepcopy(toy.state_dict())
    if isinstance(change, dict):
        content = {n: v for n, v in (before | change).items() if v is not None}
    else:
        content = change.state_dict()
    with pytest.raises(CheckpointError, match=rf"(?s)w\.pth.*{message}"):
        load_weights(toy, read_checkpoint(saved(content)), **options)
    assert_equal(toy.state_dict(), before)


def test_other_norm(toy, saved):
    checkpoint = read_checkpoint(saved(toy.state_dict()))
    toy.norm = torch.nn.GroupNorm(2, 4)
    message = r"(?s)statistics of batch norm .* set MODEL\.RESNETS\.NORM(.*unknown to the model){2}"
    with pytest.raises(CheckpointError, match=message):
        load_weights(toy, checkpoint)


def test_reinit_heads(toy, tmp_path, caplog):
    source, before = ToyDetector(5), deepcopy(toy.state_dict())
    toy.categories = CATEGORIES
    load_weights(toy, Checkpoint(tmp_path / "w.pth", source.state_dict()), reinit_heads=True)
    for name, value in toy.state_dict().items():
        expected = before if "cls_score" in name else source.state_dict()
        assert torch.equal(value, expected[name]), name
    assert toy.categories == CATEGORIES
    assert "roi_heads.box.predictor.cls_score.bias" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"norm.weight": torch.zeros(1)}, r"w\.pth: has no config.*name the YAML file"),
        ({"transformer.weight": torch.zeros(1), "class_embed.bias": torch.zeros(1)},
         r"\(transformer\.weight, class_embed\.bias\) is unk"),
    ],
)  # fmt: skip
def test_no_config(built, content, message):
    with pytest.raises(CheckpointError, match=message):
        built(content)


def test_imports_of_a_checkpoint_are_ignored(built, tmp_path, tiny_config):
    marker, extension = tmp_path / "ran", tmp_path / "extension.py"
    extension.write_text(f"open({str(marker)!r}, 'w')\n")
    cfg = tiny_config()
    text = cfg.dump().replace("IMPORTS: []", f"IMPORTS: [{extension}]")
    assert str(extension) in text
    content = {"model": build_model(cfg).state_dict(), "config": text}
    built(content)
    assert not marker.exists()
    built(content, "IMPORTS", str(extension))
    assert marker.exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"config": "SOLVER: {BASE_LRR: 1.0}"}, r"w\.pth: unknown config key SOLVER\.BASE_LRR"),
        ({"config": "SOLVER: ["}, r"config in .*w\.pth: is not YAML"),
        ({"override": ["resize=never"]}, r"w\.pth: its override must be field=value: res"),
        ({"convention": "yolo"}, r"w\.pth: has the unknown convention 'yolo'"),
        (
            {"categories": [{"id": 1, "name": "cell"}]},
            r"names 1 categories, .* detects 3\. Correct",
        ),
    ],
)
def test_invalid_fields_name_the_checkpoint(built, tiny_config, fields, message):
    cfg = tiny_config()
    model = build_model(cfg).state_dict()
    content = {"model": model, "convention": "detlite", "config": cfg.dump()}
    error = ConfigError if "unknown config key" in message else CheckpointError
    with pytest.raises(error, match=message):
        built(content | fields)


@pytest.mark.parametrize("training_state", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_moving_average(toy, saved, training_state, stored):
    state = toy.state_dict() | ({"moving_foreground": torch.tensor(7.0)} if stored else {})
    toy.register_buffer("moving_foreground", torch.tensor(100.0))
    load_weights(toy, read_checkpoint(saved(state)), training_state=training_state)
    assert toy.moving_foreground == (7 if stored and training_state else 100)


@pytest.mark.parametrize("with_file", [False, True])
def test_a_checkpoint_is_read_once(tiny_config, tmp_path, monkeypatch, with_file):
    cfg = tiny_config()
    path = tmp_path / "w.pth"
    save_checkpoint(Checkpoint(path, build_model(cfg).state_dict(), [], cfg.dump(), "detlite"))
    (tmp_path / "model.yaml").write_text(cfg.dump())
    opened, read = [], files.read_pickle
    monkeypatch.setattr(files, "read_pickle", lambda path: opened.append(path) or read(path))
    _, model = build_model_from_checkpoint(path, (), tmp_path / "model.yaml" if with_file else None)
    assert len(opened) == 1
    assert model.categories == [{"id": k, "name": f"class {k}"} for k in (1, 2, 3)]


def test_frozen_and_trained_norms(tiny_config, tmp_path):
    frozen = build_model(tiny_config("MODEL.RESNETS.NORM", "FrozenBN"))
    trained = build_model(tiny_config("MODEL.RESNETS.NORM", "BN"))
    load_weights(trained, Checkpoint(tmp_path / "w.pth", frozen.state_dict()))
    state = trained.state_dict()
    assert state["backbone.body.stem.norm1.num_batches_tracked"] == 0
    for name, value in frozen.state_dict().items():
        assert torch.equal(state[name], value)
    load_weights(frozen, Checkpoint(tmp_path / "w.pth", state))


@pytest.mark.parametrize("masks", [False, True])
def test_optional_head(tiny_config, tmp_path, caplog, masks):
    source, target = (build_model(tiny_config("MODEL.MASK_ON", on)) for on in (not masks, masks))
    before = deepcopy(target.state_dict())
    checkpoint = Checkpoint(tmp_path / "w.pth", source.state_dict())
    with pytest.raises(CheckpointError, match=r"roi_heads\.mask"):
        load_weights(target, checkpoint)
    load_weights(target, checkpoint, reinit_heads=True)
    kept = "has no mask head: it is newly initialized"
    skipped = "has a mask head, but the model has none: it is skipped"
    assert re.findall(f"{kept}|{skipped}", caplog.text) == [kept if masks else skipped]
    for name, value in target.state_dict().items():
        expected = before if name.startswith("roi_heads.mask.") else source.state_dict()
        assert torch.equal(value, expected[name]), name


def test_a_path_is_never_a_name():
    assert resolve_checkpoint_path(Path("coco")) == Path("coco")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ROI_BOX_HEAD.MLP_HEAD_DIM", 60_000),
        ("RESNETS.RES2_OUT_CHANNELS", 60_000),
        ("ROI_BOX_HEAD.NUM_CLASSES", 2**40),
    ],
)
def test_stored_config_of_a_huge_model(tmp_path, key, value):
    file = write_weights(tiny_config(), tmp_path / "a.pth")
    checkpoint = read_checkpoint(file)
    config = config_of(checkpoint, [f"MODEL.{key}", value]).dump()
    save_checkpoint(replace(checkpoint, config=config))
    with pytest.raises(ConfigError, match="a model that is much larger than its weights"):
        build_model_from_checkpoint(file)
