"""Write text of any script, in fonts that have its characters.

Pillow's own font has only ASCII. Other characters are written in the font of `use_font`, or in the
first font of matplotlib or the system that has them.
"""

import logging
import re
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont, features
from PIL.ImageFont import FreeTypeFont

from detlite.config import ConfigError
from detlite.errors import one_line

_SIZE = 16  # pixels, of a font that is only searched
_STRIKES = (109, 160)  # pixels; the only sizes of color fonts that consist of images
_NOT_A_CHARACTER = "\U0010ffff"  # its glyph is that of all missing characters
_SPECIAL_STYLES = re.compile("bold|black|light|thin|italic|oblique|mono|serif|cond", re.IGNORECASE)
_logger = logging.getLogger(__name__)
_own_files: list[Path] = []
_missing: list[str] = []

Box = tuple[float, float, float, float]


def use_font(file: str | Path) -> None:
    """Write all characters that a TTF, OTF or TTC file has in its font.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        _open(Path(file), _SIZE)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read as a font ({error})") from error
    _own_files[:] = [Path(file)]
    _file_with.cache_clear()


class Line:
    """A line of text at a size in pixels.

    Attributes:
        box: left, top, right and bottom of the ink, relative to the start of the baseline.
    """

    def __init__(self, text: str, size: int) -> None:
        self._runs: list[tuple[str, FreeTypeFont, float, float]] = []
        x, boxes = 0.0, []
        for file, run in _split(re.sub(r"\s", " ", text)):
            font = _open(file, size)
            scale = min(size / font.size, 1.0) if font.size in _STRIKES else 1.0
            self._runs.append((run, font, x, scale))
            box = [scale * side for side in font.getbbox(run, anchor="ls")]
            boxes.append((box[0] + x, box[1], box[2] + x, box[3]))
            x += scale * font.getlength(run)
        lefts, tops, rights, bottoms = zip(*boxes, strict=True) if boxes else [(0.0,)] * 4
        self.box: Box = min(lefts), min(tops), max(rights), max(bottoms)

    def draw(self, canvas: Image.Image, x: float, y: float, color: str) -> None:
        """Write the line on an RGB image, with the start of its baseline at (x, y)."""
        draw = ImageDraw.Draw(canvas)
        for run, font, offset, scale in self._runs:
            if scale == 1:
                place = x + offset, y
                draw.text(place, run, color, font, anchor="ls", embedded_color=True)
                continue
            left, top, right, bottom = (int(side) for side in font.getbbox(run, anchor="ls"))
            glyphs = Image.new("RGBA", (right - left + 1, bottom - top + 1))
            ImageDraw.Draw(glyphs).text(
                (-left, -top), run, color, font, anchor="ls", embedded_color=True
            )
            glyphs.thumbnail((scale * glyphs.width, scale * glyphs.height))
            canvas.paste(glyphs, (round(x + offset + scale * left), round(y + scale * top)), glyphs)


@contextmanager
def fonts_for(figure: Any) -> Iterator[None]:
    """Write the texts of a matplotlib figure that is saved in fonts that have their characters."""
    from matplotlib.font_manager import FontProperties, fontManager
    from matplotlib.text import Text

    texts = figure.findobj(Text)
    runs = _split("".join(text.get_text() for text in texts))
    names = []
    for file in dict.fromkeys(file for file, _ in runs if file):
        fontManager.addfont(file)
        names.append(FontProperties(fname=file).get_name())
    for text in texts if names else ():
        text.set_family(list(dict.fromkeys([*text.get_fontfamily(), *names])))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # `_file_with` has said it
        yield


def _split(text: str) -> list[tuple[Path | None, str]]:
    """Split a text into runs, each with the file of its font, or None for Pillow's font."""
    runs: list[tuple[Path | None, str]] = []
    for character in text:
        file = runs[-1][0] if runs else None
        joined = character.isspace() or unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf")
        kept = runs and (joined or _has(file, character))
        # Fonts of emoji have digits and spaces too, as wide as an emoji.
        if not kept or (character.isascii() and _open(file, _SIZE).size in _STRIKES):
            file = _file_with(character)
        if runs and file == runs[-1][0]:
            runs[-1] = file, runs[-1][1] + character
        else:
            runs.append((file, character))
    return [(file, _visual(run)) for file, run in runs]


def _visual(text: str) -> str:
    """Return a text in the order in which Pillow writes it, from left to right.

    Without the library Raqm, Pillow does not know of scripts that are written from right to left.
    """
    if features.check("raqm"):
        return text
    kinds = "".join("R" if unicodedata.bidirectional(x) in ("R", "AL") else "L" for x in text)
    for match in re.finditer("R(L?R)*", kinds):
        text = text[: match.start()] + text[slice(*match.span())][::-1] + text[match.end() :]
    return text


@cache
def _file_with(character: str) -> Path | None:
    """Return the first font file that has a character; None for Pillow's font."""
    for file in _files():
        if character.isspace() or _has(file, character):
            return file
    if not _missing:
        _logger.warning(
            "No font has the character %s (U+%04X), so drawings show a square for it and others: "
            "install a font that has it, such as Noto, or name the file of one with --font "
            "(use_font in Python)", one_line(character), ord(character),
        )  # fmt: skip
    _missing.append(character)
    return None


def _files() -> Iterator[Path | None]:
    """Yield the fonts in the order in which they are tried."""
    yield from (*_own_files, None, Path(get_data_path(), "fonts/ttf/DejaVuSans.ttf"))
    yield from _system_fonts()


@lru_cache(maxsize=1)
def _system_fonts() -> list[Path]:
    """Return the fonts of the system, regular ones first."""
    from matplotlib.font_manager import findSystemFonts  # slow

    files = map(Path, findSystemFonts())
    return sorted(files, key=lambda file: (bool(_SPECIAL_STYLES.search(file.stem)), file.name))


@cache
def _has(file: Path | None, character: str) -> bool:
    try:
        font = _open(file, _SIZE)
        glyph, missing = (font.getmask(x, "1") for x in (character, _NOT_A_CHARACTER))
    except OSError:  # a damaged font
        return False
    return (glyph.size, bytes(glyph)) != (missing.size, bytes(missing))


@lru_cache(maxsize=1024)
def _open(file: Path | None, size: int) -> FreeTypeFont:
    """Open a font, at another size if it does not have this one. Raises OSError."""
    if file is None:
        return cast(FreeTypeFont, ImageFont.load_default(size))
    for pixels in (size, *_STRIKES):
        try:
            return ImageFont.truetype(file, pixels)
        except OSError as error:
            if "size" not in str(error):
                raise
    raise OSError("it has no usable size")
