"""Read a JSON object in a stream, with bounded memory."""

import codecs
import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

# Parsing a truncated number, word or escape fails at most this many characters before its end.
_TRUNCATED = 16
_SPACE = re.compile(r"[ \t\n\r]*")
_decode = json.JSONDecoder().raw_decode


class NotAnObjectError(ValueError):
    """The JSON document is not an object; the message is the name of its type."""


def read_members(
    blocks: Iterable[bytes], streamed: Collection[str]
) -> Iterator[tuple[str, Any, str | None]]:
    """Yield the members of a JSON object; large lists are yielded entry by entry.

    Args:
        blocks: the bytes of the document, in any encoding and form that `json.loads` accepts.
        streamed: the keys of lists that are read entry by entry, not as a whole.

    Yields:
        (key, value, None) for each member in the order of the document. The value of a list in
        `streamed` is [], and (key, entry, text of the entry) follows for each entry. A key may
        occur repeatedly; `json.loads` would use the last one.

    Raises NotAnObjectError, ValueError with the position, or RecursionError.
    """
    window = _Window(_decoded(blocks))
    if window.peek() != "{":
        value = [] if window.peek() == "[" else window.value()[0]
        raise NotAnObjectError(type(value).__name__)
    for _ in window.items("{}"):
        if window.peek() != '"':
            raise window.error("Expecting property name enclosed in double quotes")
        key, _ = window.value()
        window.take(":")
        if key in streamed and window.peek() == "[":
            yield key, [], None
            for _ in window.items("[]"):
                yield key, *window.value()
        else:
            yield key, window.value()[0], None
    if window.peek():
        raise window.error("Extra data")


def _decoded(blocks: Iterable[bytes]) -> Iterator[str]:
    decoder: codecs.IncrementalDecoder | None = None
    for block in blocks:
        if decoder is None:
            decoder = codecs.getincrementaldecoder(json.detect_encoding(block))("surrogatepass")
        yield decoder.decode(block)
    if decoder is not None:
        yield decoder.decode(b"", final=True)


class _Window:
    """The part of a document that is in memory, and the position of the parser in it."""

    def __init__(self, blocks: Iterator[str]) -> None:
        self._blocks = blocks
        self._text = ""
        self._position = 0
        self._chars = self._lines = self._line_start = 0  # of the text that was dropped

    def peek(self) -> str:
        """Return the next character that is not white space; '' at the end."""
        while True:
            self._position = _SPACE.match(self._text, self._position).end()  # type: ignore[union-attr]
            if self._position < len(self._text) or not self._extend():
                return self._text[self._position : self._position + 1]

    def take(self, expected: str) -> str:
        """Consume and return the next character, which must be in `expected`."""
        char = self.peek()
        if not char or char not in expected:
            raise self.error(f"Expecting {' or '.join(map(repr, expected))}")
        self._position += 1
        return char

    def value(self) -> tuple[Any, str]:
        """Consume and return the next value and its text."""
        self.peek()
        while True:
            try:
                value, end = _decode(self._text, self._position)
            except json.JSONDecodeError as error:
                unterminated = error.msg.startswith("Unterminated")
                truncated = unterminated or error.pos > len(self._text) - _TRUNCATED
                if not (truncated and self._extend()):
                    raise self.error(error.msg, error.pos) from None
                continue
            # A number at the end of the window may have more digits.
            if end <= len(self._text) - _TRUNCATED or not self._extend():
                text = self._text[self._position : end]
                self._position = end
                return value, text

    def items(self, brackets: str) -> Iterator[None]:
        """Step through the items of a list or object. The caller consumes each item."""
        self.take(brackets[0])
        end = self.peek() == brackets[1]
        if end:
            self.take(brackets[1])
        while not end:
            yield
            end = self.take("," + brackets[1]) == brackets[1]

    def error(self, message: str, position: int | None = None) -> ValueError:
        """Return an error that names a position of the window, by default the current one."""
        self._drop(self._position if position is None else position)
        return ValueError(
            f"{message}: line {self._lines + 1} column {self._chars - self._line_start + 1} "
            f"(char {self._chars})"
        )

    def _drop(self, position: int) -> None:
        last = self._text.rfind("\n", 0, position)
        if last >= 0:
            self._lines += self._text.count("\n", 0, position)
            self._line_start = self._chars + last + 1
        self._chars += position
        self._text = self._text[position:]
        self._position = max(self._position - position, 0)

    def _extend(self) -> bool:
        """Read more text; True if there was more.

        The window at least doubles, so that a long value is parsed only a few times.
        """
        added: list[str] = []
        size, target = 0, len(self._text) - self._position + 1
        while size < target and (block := next(self._blocks, None)) is not None:
            added.append(block)
            size += len(block)
        if added:
            self._drop(self._position)
            self._text = "".join([self._text, *added])
        return bool(added)
