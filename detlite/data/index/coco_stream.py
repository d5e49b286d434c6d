"""A JSON document read piece by piece: a large one takes no more memory than a small one."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

# No number, word or escape of JSON that is cut short has more characters after where it fails.
_CUT = 16
_SPACE = re.compile(r"[ \t\n\r]*")
_decode = json.JSONDecoder().raw_decode


class NotAnObjectError(ValueError):
    """A document that is JSON, but no object; the message is the name of its type."""


def read_parts(
    blocks: Iterable[bytes], streamed: Collection[str]
) -> Iterator[tuple[str, Any, str | None]]:
    """The members of the object that a document is, long lists element by element.

    Args:
        blocks: the document's bytes, in any encoding and with anything that `json.loads` takes.
        streamed: the keys of lists that are not to be held in memory as a whole.

    Yields:
        (key, value, None) for each member, in the document's order, where a list of `streamed` is
        [], and followed by (key, element, its text) for each element. As in `json.loads`, of
        members with the same key the last one counts, which is left to the caller.

    Raises:
        NotAnObjectError: the document is a list, or anything else.
        ValueError: it is not JSON; the message says where.
        RecursionError: it is nested too deep.
    """
    window = _Window(_text(blocks))
    if window.peek() == "[":
        raise NotAnObjectError("list")
    if window.peek() != "{":
        raise NotAnObjectError(type(window.value()[0]).__name__)
    window.take("{")
    ends = window.peek() == "}"
    if ends:
        window.take("}")
    while not ends:
        if window.peek() != '"':
            raise window.error("Expecting property name enclosed in double quotes")
        key, _ = window.value()
        window.take(":")
        if key in streamed and window.peek() == "[":
            yield key, [], None
            for element, text in window.elements():
                yield key, element, text
        else:
            yield key, window.value()[0], None
        ends = window.take(",}") == "}"
    if window.peek():
        raise window.error("Extra data")


def _text(blocks: Iterable[bytes]) -> Iterator[str]:
    """The document as text, decoded as `json.loads` does it."""
    decoder: codecs.IncrementalDecoder | None = None
    for block in blocks:
        if decoder is None:
            decoder = codecs.getincrementaldecoder(json.detect_encoding(block))("surrogatepass")
        yield decoder.decode(block)
    if decoder is not None:
        yield decoder.decode(b"", final=True)


class _Window:
    """The part of a document that is being parsed, and how far that has come."""

    def __init__(self, blocks: Iterator[str]) -> None:
        self._blocks = blocks
        self._text = ""
        self._at = 0
        self._chars = self._lines = self._line_start = 0  # of what was left behind

    def peek(self) -> str:
        """The next character that is no white space; '' at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, expected: str) -> str:
        """Goes past the next character, which must be one of `expected`."""
        found = self.peek()
        if not found or found not in expected:
            raise self.error(f"Expecting {' or '.join(map(repr, expected))}")
        self._at += 1
        return found

    def value(self) -> tuple[Any, str]:
        """The next value, and its text."""
        self.peek()
        while True:
            try:
                value, end = _decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = error.pos > len(self._text) - _CUT or error.msg.startswith("Unterminated")
                if not (cut and self._more()):
                    raise self.error(error.msg, error.pos) from None
                continue
            # A number may have more digits, and go on after a point that is the last character.
            if end <= len(self._text) - _CUT or not self._more():
                text = self._text[self._at : end]
                self._at = end
                return value, text

    def elements(self) -> Iterator[tuple[Any, str]]:
        """The elements of the next value, a list, and their texts."""
        self.take("[")
        ends = self.peek() == "]"
        if ends:
            self.take("]")
        while not ends:
            yield self.value()
            ends = self.take(",]") == "]"

    def error(self, message: str, place: int | None = None) -> ValueError:
        """The error of a document that is wrong at a place of the window, or where parsing is."""
        place = self._at if place is None else place
        self._leave(place)
        return ValueError(
            f"{message}: line {self._lines + 1} column {self._chars - self._line_start + 1} "
            f"(char {self._chars})"
        )

    def _leave(self, place: int) -> None:
        """Drops what comes before a place of the window."""
        last = self._text.rfind("\n", 0, place)
        if last >= 0:
            self._lines += self._text.count("\n", 0, place)
            self._line_start = self._chars + last + 1
        self._chars += place
        self._text, self._at = self._text[place:], max(self._at - place, 0)

    def _more(self) -> bool:
        """Reads on, and tells whether there was more. What is parsed again and again, because it is
        long, at least doubles each time."""
        added: list[str] = []
        size, wanted = 0, len(self._text) - self._at + 1
        while size < wanted and (block := next(self._blocks, None)) is not None:
            added.append(block)
            size += len(block)
        if added:
            self._leave(self._at)
            self._text = "".join([self._text, *added])
        return bool(added)
