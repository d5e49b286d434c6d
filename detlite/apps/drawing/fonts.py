"""Write text of any script, in fonts that have its characters.

Pillow's own font has only ASCII. Other characters are written in the font of `use_font`, or in the
first font of matplotlib or the system that has them.
"""

import logging
import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import cast

from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont
from PIL.ImageFont import FreeTypeFont

from detlite.config import ConfigError
from detlite.errors import one_line

_SIZE = 16  # pixels, of a font that is only searched
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
        self._runs: list[tuple[str, FreeTypeFont, float]] = []
        x, boxes = 0.0, []
        for file, run in split_by_font(re.sub(r"\s", " ", text)):
            font = _open(file, size)
            self._runs.append((run, font, x))
            left, top, right, bottom = font.getbbox(run, anchor="ls")
            boxes.append((left + x, top, right + x, bottom))
            x += font.getlength(run)
        lefts, tops, rights, bottoms = zip(*boxes, strict=True) if boxes else [(0.0,)] * 4
        self.box: Box = min(lefts), min(tops), max(rights), max(bottoms)

    def draw(self, canvas: Image.Image, x: float, y: float, color: str) -> None:
        """Write the line on an RGB image, with the start of its baseline at (x, y)."""
        draw = ImageDraw.Draw(canvas)
        for run, font, offset in self._runs:
            draw.text((x + offset, y), run, color, font, anchor="ls")


def split_by_font(text: str) -> list[tuple[Path | None, str]]:
    """Split a text into runs, each with the file of its font, or None for Pillow's font."""
    runs: list[tuple[Path | None, str]] = []
    for character in text:
        joined = character.isspace() or unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf")
        if runs and (joined or _has(runs[-1][0], character)):
            runs[-1] = runs[-1][0], runs[-1][1] + character
        else:
            runs.append((_file_with(character), character))
    return runs


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


@cache
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
    """Open a font. Raises OSError, also if it only has images of other sizes, as some emoji do."""
    if file is None:
        return cast(FreeTypeFont, ImageFont.load_default(size))
    return ImageFont.truetype(file, size)
