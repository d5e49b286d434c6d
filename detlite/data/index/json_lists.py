"""Parse a JSON object whose large lists stay text, because as objects they take five times more."""

import json
import re
from array import array
from collections.abc import Collection, Iterator
from typing import Any

_SPACE = re.compile(r"[ \t\n\r]*")
_decode = json.JSONDecoder().raw_decode


class NotAnObjectError(ValueError):
    """The JSON document is not an object; the message is the name of its type."""


class JsonLists:
    """The members of a JSON object, and the entries of some lists among them.

    Attributes:
        members: all members; the lists named in `keys` are empty, see `entries`.
        of_objects: those of `keys` whose values are lists of objects.

    Raises NotAnObjectError, ValueError with the position, or RecursionError.
    """

    def __init__(self, text: str, keys: Collection[str]) -> None:
        self._text = text
        self._position = 0
        self._starts: dict[str, array[int]] = {}
        self._stops: dict[str, array[int]] = {}
        self.members: dict[str, Any] = {}
        self.of_objects: set[str] = set()
        if self._peek() != "{":
            raise NotAnObjectError(type(self._value()).__name__)
        for _ in self._items("{}"):
            if self._peek() != '"':
                raise self._error("Expecting property name enclosed in double quotes")
            key = self._value()  # the last of several members with one key counts
            self._take(":")
            self.of_objects.discard(key)
            if key in keys and self._peek() == "[":
                self.members[key] = []
                self._read_list(key)
            else:
                self.members[key] = self._value()
        if self._peek():
            raise self._error("Extra data")

    def count(self, key: str) -> int:
        return len(self._starts[key])

    def entries(self, key: str) -> Iterator[dict[str, Any]]:
        """Parse the entries of a list."""
        return (_decode(self._text, start)[0] for start in self._starts[key])

    def text(self, key: str, number: int) -> str:
        """Return the text of an entry."""
        return self._text[self._starts[key][number] : self._stops[key][number]]

    def _read_list(self, key: str) -> None:
        starts, stops, are_objects = array("q"), array("q"), True
        for _ in self._items("[]"):
            are_objects &= self._peek() == "{"
            starts.append(self._position)
            self._value()
            stops.append(self._position)
        self._starts[key], self._stops[key] = starts, stops
        if are_objects:
            self.of_objects.add(key)

    def _items(self, brackets: str) -> Iterator[None]:
        """Step through the items of a list or object, each of which the caller consumes."""
        self._take(brackets[0])
        end = self._peek() == brackets[1]
        if end:
            self._take(brackets[1])
        while not end:
            yield
            end = self._take("," + brackets[1]) == brackets[1]

    def _peek(self) -> str:
        """Return the next character that is not white space; '' at the end."""
        self._position = _SPACE.match(self._text, self._position).end()  # type: ignore[union-attr]
        return self._text[self._position : self._position + 1]

    def _take(self, expected: str) -> str:
        """Consume and return the next character, which must be in `expected`."""
        char = self._peek()
        if not char or char not in expected:
            raise self._error(f"Expecting {' or '.join(map(repr, expected))}")
        self._position += 1
        return char

    def _value(self) -> Any:
        self._peek()
        value, self._position = _decode(self._text, self._position)
        return value

    def _error(self, message: str) -> ValueError:
        return json.JSONDecodeError(message, self._text, self._position)
