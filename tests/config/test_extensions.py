"""Test IMPORTS and the config keys that extensions declare."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from detlite.apps.cli.main import main
from detlite.config import ConfigError, Key, declare_keys, default_config, extensions, load_config
from detlite.config.key import positive
from detlite.engine.run_files import write_config
from detlite.modeling.backbone import BACKBONES, build_backbone
from tests.builders import write_text

_BACKBONE = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn
from detlite.engine.run_files import write_config
from detlite.modeling.backbone import BACKBONES, Backbone

@dataclass
class Widths:
    first: int = 8

class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, Widths().first, 3, stride=8, padding=1)
    def forward(self, x):
        return [self.conv(x)]

@BACKBONES.register("NAME")
def build(cfg):
    return Backbone(Body(), nn.Identity(), 8, strides=(8,), pooled=1)
"""
_REGISTRY = "from detlite.modeling.backbone import BACKBONES\n"
_KEYS = """
from detlite.config import Key, declare_keys, positive

declare_keys("MODEL.FCOS", {
    Key("RADIUS", 1.5, positive): "radius of positive locations, in strides",
    Key("LEVELS", (3, 4)): "levels of the pyramid",
    Key("NAME", None, optional_type=str): "a name",
})
declare_keys("SOLVER", {Key("TEACHER", ""): "checkpoint of the teacher"})
"""


@pytest.fixture
def write(tmp_path):
    return lambda name, text: write_text(tmp_path / name, text)


# ---- IMPORTS


def test_imports_registers_a_users_backbone(write):
    write("own.py", _BACKBONE.replace("NAME", "one-conv"))
    file = write("a.yaml", "IMPORTS: [own.py]\nMODEL: {BACKBONE: {CONV_BODY: one-conv}}")
    for _ in range(2):  # the second load finds it registered and does not run the file again
        cfg = load_config(file)
        assert BACKBONES.get("one-conv", "")
    assert build_backbone(cfg).strides == (8,)
    assert load_config(write("elsewhere/resolved.yaml", cfg.dump())) == cfg


def test_a_file_may_be_imported_as_a_module_and_copied_and_changed(write, monkeypatch):
    file = write("own_twice.py", _BACKBONE.replace("NAME", "twice"))
    monkeypatch.syspath_prepend(file.parent)
    import_module("own_twice")
    (link := file.parent / "link.py").symlink_to(file)
    copy = write("copy/own_twice.py", file.read_text())
    for path in (link, copy, file):
        load_config(None, ["IMPORTS", (str(path),)])
    changed = write(
        "new/own_twice.py", file.read_text().replace("first: int = 8", "first: int = 4")
    )
    for path, width in ((changed, 4), (file, 8), (changed, 4)):
        cfg = load_config(None, ["IMPORTS", str(path), "MODEL.BACKBONE.CONV_BODY", "twice"])
        assert build_backbone(cfg).body.conv.out_channels == width
    other = write("own_other.py", file.read_text() + "\n# not the same\n")
    with pytest.raises(ValueError, match="backbone 'twice' is already registered"):
        load_config(None, ["IMPORTS", (str(other),)])


def test_imports_accepts_installed_modules():
    assert load_config(None, ["IMPORTS", ("json",)]).IMPORTS == ("json",)
    for name in ("this_module_does_not_exist", "no_such_file.py"):
        with pytest.raises(ConfigError, match=f"IMPORTS: cannot import '{name}'"):
            load_config(None, ["IMPORTS", (name,)])


def test_failed_import_is_repeated(write):
    file = write("broken.py", _KEYS + "import this_module_does_not_exist")
    for _ in range(2):
        with pytest.raises(ConfigError, match="this_module_does_not_exist"):
            load_config(None, ["IMPORTS", (str(file),)])


def test_imports_of_all_files_add_up_and_are_relative_to_their_file(write, monkeypatch):
    """They are neither replaced by a later file, nor searched for in the working directory."""
    for name in ("base/one", "leaf/two", "three", "leaf/one"):
        write(f"{name}.py", f"# {name}\n")
    write("base/a.yaml", "IMPORTS: [one.py]")
    leaf = write("leaf/b.yaml", "_BASE_: ../base/a.yaml\nIMPORTS: [two.py, json]")
    monkeypatch.chdir(leaf.parents[1])
    cfg = load_config("leaf/b.yaml", ["IMPORTS", "three.py"])
    names = [Path(name).resolve().relative_to(leaf.parents[1]) for name in cfg.IMPORTS]
    assert cfg.IMPORTS[2] == "json"
    assert [*map(str, names[:2]), str(names[3])] == ["base/one.py", "leaf/two.py", "three.py"]
    leaf.write_text("IMPORTS: [three.py]")
    with pytest.raises(ConfigError, match=r"cannot import 'three\.py': .*leaf/three\.py"):
        load_config(leaf)
    leaf.write_text("_BASE_: ../base/a.yaml\nIMPORTS: [one.py]")
    with pytest.raises(ConfigError, match=r"base/one\.py and \S*leaf/one\.py have the same name"):
        load_config(leaf)


def test_the_folder_of_a_run_has_copies_of_the_files(write, tmp_path):
    file = write("project/one.py", "# 1\n")
    (run := tmp_path / "run").mkdir()
    cfg = load_config(None, {"IMPORTS": ["json", file]})
    for text in ("# 1\n", "# 2\n"):  # of the first part of a run, and of a resumed one
        file.write_text(text)
        write_config(cfg, run)
        assert (run / "extensions" / "one.py").read_text() == text
    moved = run.rename(tmp_path / "moved")
    file.unlink()
    again = load_config(moved / "config.yaml")
    assert ("json", str(moved / "extensions" / "one.py")) == again.IMPORTS
    write_config(again, moved)
    assert load_config(moved / "config.yaml") == again


# ---- own keys


def test_files_import_files_before_them(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as of `python -m` and notebooks
    register = '@BACKBONES.register("parts")\ndef build(cfg):\n    return WIDTH\n'
    write("parts.py", "WIDTH = 8\n")
    write("uses.py", f"from parts import WIDTH\n{_REGISTRY}{register}")
    file = write("a.yaml", "IMPORTS: [parts.py, uses.py]")
    cfg = load_config(file)
    run, moved = tmp_path / "run", tmp_path / "moved"
    run.mkdir()
    write_config(cfg, run)
    run.rename(moved)
    assert (moved / "extensions" / "parts.py").is_file()
    assert load_config(moved / "config.yaml").IMPORTS
    for width in (8, 16):  # changing a part loads what imports it again
        write("parts.py", f"WIDTH = {width}\n")
        load_config(file)
        assert BACKBONES.get("parts")(None) == width
    with pytest.raises(ConfigError, match=r"list parts\.py before it in IMPORTS"):
        load_config(None, ["IMPORTS", [str(tmp_path / "uses.py")]])
    assert "parts" not in sys.modules


def test_own_keys_are_set_checked_and_stored_like_others(write):
    write("fcos.py", _KEYS)
    write("base.yaml", "IMPORTS: [fcos.py]\nMODEL: {FCOS: {RADIUS: 2}}")
    leaf = write("leaf/a.yaml", "_BASE_: ../base.yaml\nSOLVER: {TEACHER: t.pth}")
    cfg = load_config(leaf, ["MODEL.FCOS.LEVELS", "[5, 6]"])
    values = {"RADIUS": 2.0, "LEVELS": (5, 6), "NAME": None}
    assert dict(cfg.MODEL.FCOS) == values
    assert type(cfg.MODEL.FCOS.RADIUS) is float
    assert cfg.SOLVER.TEACHER == "t.pth"
    assert load_config(write("again.yaml", cfg.dump())) == cfg
    assert "FCOS" not in load_config().MODEL  # other configs do not have them
    assert load_config() == default_config()
    for opts, message in (
        (["MODEL.FCOS.RADIUS", -1], r"overrides: MODEL\.FCOS\.RADIUS is -1\.0, but must be greater "
         r"than 0 \(radius of positive locations, in strides\)"),
        (["MODEL.FCOS.RADIUS", "wide"], r"RADIUS is 'wide' \(str\), but must be float \(radius"),
        (["MODEL.FCOS.RADUS", 1], r"unknown config key MODEL\.FCOS\.RADUS \(did you mean MODEL"),
        (["MODEL.FCOS", 1], r"MODEL\.FCOS \(a section with keys such as MODEL\.FCOS\.RADIUS\)"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            load_config(leaf, opts)


def test_the_command_config_prints_a_config_with_own_keys(write, capsys):
    write("fcos.py", _KEYS)
    file = write("a.yaml", "IMPORTS: [fcos.py]\nMODEL: {FCOS: {RADIUS: 2}, MASK_ON: true}")
    assert main(["config", "--config", str(file), "MODEL.FCOS.LEVELS", "[5]"]) == 0
    text = capsys.readouterr().out
    line = "MODEL.FCOS.RADIUS: 2.0  # radius of positive locations, in strides (default: 1.5)\n"
    assert line in text
    cfg = load_config(file, ["MODEL.FCOS.LEVELS", [5]])
    assert load_config(write("b.yaml", text)) == cfg
    assert main(["config", "--config", str(file), "--keys", "MODEL.FCOS.R"]) == 0
    assert capsys.readouterr().out == line
    assert main(["config", "--keys", "MODEL.FCOS"]) == 2


def test_keys_of_code_that_is_imported_without_imports_are_in_all_configs(monkeypatch):
    monkeypatch.setattr(extensions, "_DECLARED", {})
    declare_keys("MODEL.OWN", {Key("SIZE", 3): "a size"})
    assert load_config(None, ["MODEL.OWN.SIZE", "4"]).MODEL.OWN.SIZE == 4


def test_a_changed_file_declares_its_keys_again(write):
    for number in (1, 2, 1):
        text = f"from detlite.config import Key, declare_keys\nKEYS = {{Key('A', {number}): 'a'}}\n"
        file = write("again.py", text + "declare_keys('OWN', KEYS)")
        cfg = load_config(None, ["IMPORTS", str(file)])
        assert [*cfg.OWN.items()] == [("A", number)]
    other = write("other.py", file.read_text())
    with pytest.raises(ConfigError, match=r"again\.py and \S*other\.py declare .* key OWN\.A"):
        load_config(None, ["IMPORTS", (str(file), str(other))])


@pytest.mark.parametrize(
    ("section", "key", "doc", "problem"),
    [
        ("SOLVER", Key("BASE_LR", 1.0), "a", "detlite has this key"),
        ("SOLVER.BASE_LR", Key("HEAD", 1.0), "a", "detlite has this key"),
        ("MODEL", Key("RPN", 1), "a", "detlite has a section of this name"),
        ("MODEL.fcos", Key("RADIUS", 1), "a", "write names in capitals"),
        ("MODEL.OWN", Key("A", 1), "", "describe it in a sentence"),
        ("MODEL.OWN", Key("A", {"a": 1}), "a", "its type is dict, but must be one of bool, int"),
        ("MODEL.OWN", Key("A", None), "a", "its type is NoneType"),
        ("MODEL.OWN", Key("A", 0, positive), "a", "its default is 0, but must be greater than 0"),
    ],
)
def test_invalid_declarations(section, key, doc, problem):
    with pytest.raises(ConfigError, match=rf"cannot declare .* {section}\.{key.name}: {problem}"):
        declare_keys(section, {key: doc})
    assert load_config() == default_config()
