"""Almost valid inputs: valid ones, with some parts replaced, removed or repeated."""

import copy
from typing import Any

from hypothesis import strategies as st

_NUMBERS = [0, 1, -1, 2, 7, 2**31, 2**53, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, 5e-324]
_UNEXPECTED: list[Any] = [
    *_NUMBERS, None, True, False, "", "0", "1e3", "\ud800", "\0", "a" * 300, "../x", [], {}, [[]],
    [0], [None], {"": 0}, [[[[]]]], float("inf"), float("-inf"), float("nan"),
]  # fmt: skip


def unexpected_values() -> st.SearchStrategy[Any]:
    """Values of JSON, YAML or a pickle that are rarely valid."""
    leaves = st.sampled_from(_UNEXPECTED) | st.integers() | st.floats() | st.text(max_size=8)
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        ),
        max_leaves=6,
    )


@st.composite
def mutated(draw: st.DrawFn, valid: Any, max_changes: int = 3, values: Any = None) -> Any:
    """Change nested lists and dicts in up to `max_changes` places.

    Replacements are drawn from `values`, by default `unexpected_values()`.
    """
    content = copy.deepcopy(valid)
    for _ in range(draw(st.integers(0, max_changes))):
        places = list(_places(content))
        if not places:
            break
        parent, key = draw(st.sampled_from(places))
        change = draw(st.sampled_from(["replace", "replace", "remove", "repeat", "move"]))
        if change == "replace":
            # A copy, because later changes may modify it.
            parent[key] = copy.deepcopy(draw(unexpected_values() if values is None else values))
        elif change == "remove":
            del parent[key]
        elif change == "repeat" and isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        elif change == "move":
            other, place = draw(st.sampled_from(places))
            parent[key] = copy.deepcopy(other[place])
    return content


def _places(node: Any) -> Any:
    """Yield (container, key) of every part."""
    if isinstance(node, dict | list):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            yield node, key
            yield from _places(node[key])


@st.composite
def mutated_bytes(draw: st.DrawFn, valid: bytes, max_changes: int = 4) -> bytes:
    """Change, remove, insert or copy bytes in up to `max_changes` places."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(0, max_changes))):
        at = draw(st.integers(0, len(data)))
        count = draw(st.sampled_from([1, 1, 2, 4, 8, 64, 1000]))
        change = draw(st.sampled_from(["flip", "set", "cut", "remove", "insert", "copy"]))
        if change == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif change == "set":
            data[at : at + count] = draw(st.binary(max_size=8))
        elif change == "cut":
            del data[at:]
        elif change == "remove":
            del data[at : at + count]
        elif change == "insert":
            data[at:at] = draw(st.sampled_from([b"\0", b"\xff"])) * count
        elif change == "copy":
            other = draw(st.integers(0, len(data)))
            data[at : at + count] = data[other : other + count]
    return bytes(data)
