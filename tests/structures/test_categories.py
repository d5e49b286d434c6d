"""Match categories by name, in another order, spelling or number."""

import pytest

from detlite.structures.categories import CategoryMatch


def rows(names):
    return [{"name": name} for name in names]


@pytest.mark.parametrize(
    ("source", "target", "numbers", "differ"),
    [
        ("cat dog", "cat dog", [0, 1], False),
        ("cat dog", "DOG cat", [1, 0], True),
        ("cat dog", "dog", [1], True),
        ("dog", "cat dog", [None, 0], True),
        ("cat dog", "cat", [0], True),
        ("cat Cat", "Cat cat", [1, 0], True),  # the exact name first
        ("traffic_light", " traffic-light ", [0], False),
        ("cat", "bird", [None], True),
        ("", "cat dog", [None, None], False),
        ("cat dog", "", [], False),
        ("class-1 class-2", "cat dog", [0, 1], False),  # no names: by position
        ("cat", "class-1 class-2", [0, None], False),
    ],
)
def test_numbers(source, target, numbers, differ):
    lists = [rows(part.replace("class-", "class ") for part in text.split(" ") if part)
             for text in (source, target)]  # fmt: skip
    match = CategoryMatch(*lists)
    assert (match.numbers, match.differ) == (numbers, differ)


def test_description():
    match = CategoryMatch(rows(["a", "b"]), rows(["B", "c"]), ("the weights", "the model"))
    assert str(match) == (
        "categories matched by name: B; only in the weights: a; only in the model: c"
    )
    assert str(CategoryMatch(rows("a"), rows("b"))).startswith("categories matched by name: none;")
    assert len(str(CategoryMatch(rows("ab"), rows(f"number {n}" for n in range(1000))))) < 600
