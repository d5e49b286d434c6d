"""Test text of any script in drawings."""

from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from PIL import Image

from detlite.apps.cli.main import main
from detlite.apps.drawing import fonts
from detlite.config import ConfigError

CAR, BUS = "\u6c7d", "\u8f66"  # characters that no common font of a server has


def font_file(file: Path) -> Path:
    """Write a font in which the two characters are bars of different heights."""
    builder, glyphs = FontBuilder(1000), {}
    for name, height in ((".notdef", 100), ("car", 400), ("bus", 800)):
        pen = TTGlyphPen(None)
        pen.moveTo((0, 0))
        for point in ((900, 0), (900, height), (0, height)):
            pen.lineTo(point)
        pen.closePath()
        glyphs[name] = pen.glyph()
    builder.setupGlyphOrder([*glyphs])
    builder.setupCharacterMap({ord(CAR): "car", ord(BUS): "bus"})
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Bars", "styleName": "Regular"})
    builder.setupPost()
    builder.save(file)
    return file


@pytest.fixture(autouse=True)
def default_fonts():
    yield
    fonts._own_files.clear()
    fonts._missing.clear()
    fonts._file_with.cache_clear()
    fonts._system_fonts.cache_clear()


def written(text: str) -> np.ndarray:
    """Return the ink of a text."""
    canvas = Image.new("RGB", (300, 60))
    fonts.Line(text, 30).draw(canvas, 5, 40, "white")
    return np.asarray(canvas).max(axis=2) > 127


@pytest.mark.parametrize("text", ["façade", "машина", "שלום", "سيارة", "\U0001f600 car"])
def test_scripts_of_matplotlibs_font(text, caplog):
    ink = written(text)
    assert (ink != written("".join(x if x.isascii() else "\U0010ffff" for x in text))).any()
    assert caplog.text.count("U+10FFFF") == 1  # of the comparison


def test_missing_characters_are_reported_once(caplog):
    assert (written(CAR) == written(BUS)).all()
    written("\u8f67")
    assert caplog.text.count("No font has the character") == 1
    assert "U+6C7D" in caplog.text
    assert "--font" in caplog.text


def test_font_of_the_user(tmp_path, caplog):
    fonts.use_font(font_file(tmp_path / "bars.ttf"))
    assert written(BUS).sum() > 1.5 * written(CAR).sum() > 0
    assert written(f"{CAR} 0.9").any(axis=0).nonzero()[0].max() > 60
    assert not caplog.text


def test_font_of_the_system(tmp_path, monkeypatch, caplog):
    (tmp_path / "damaged.ttf").write_bytes(b"\0\1\0\0")
    files = [tmp_path / "damaged.ttf", font_file(tmp_path / "bars.ttf")]
    monkeypatch.setattr("matplotlib.font_manager.findSystemFonts", lambda: map(str, files))
    assert fonts.Line(BUS, 100).box == (0.0, -80, 100.0, 0)
    assert not caplog.text


def test_unusual_text():
    assert fonts.Line("two\nlines", 30).box == fonts.Line("two lines", 30).box
    assert fonts.Line("", 30).box == (0, 0, 0, 0)


def test_files_that_are_no_fonts(tmp_path, capsys):
    file = tmp_path / "a.ttf"
    with pytest.raises(ConfigError, match=r"a\.ttf: cannot be read as a font"):
        fonts.use_font(file)
    file.write_text("no font")
    assert main(["browse", "--config", "demo_shapes.yaml", "--font", str(file)]) == 2
    assert "a.ttf: cannot be read as a font" in capsys.readouterr().err
