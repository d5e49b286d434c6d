"""Test that every key is documented, has a valid default and is used."""

import logging
import re
from collections import Counter

import pytest

from detlite.config import KEYS, load_config
from detlite.config.maskrcnn_benchmark import RESTATING
from detlite.config.removed import NO_EFFECT

NAMES = [key.name for key in KEYS]


def test_names_are_unique():
    assert not [name for name, count in Counter(NAMES).items() if count > 1]


@pytest.mark.parametrize("key", KEYS, ids=NAMES)
def test_key_has_a_description_and_a_valid_default(key):
    assert key.doc
    assert key.default is not None or key.optional_type is not None
    if key.default is not None and key.check is not None:
        assert key.check(key.default) is None


@pytest.fixture(scope="module")
def sources(repo_root):
    """The text of every module that may read keys."""
    schema = repo_root / "detlite" / "config" / "schema"
    files = [*(repo_root / "detlite").rglob("*.py"), *(repo_root / "tools").rglob("*.py")]
    return [file.read_text() for file in files if schema not in file.parents]


@pytest.mark.parametrize("key", KEYS, ids=NAMES)
def test_key_is_used(key, sources):
    """Search for a file that contains the section and `.KEY` or `"KEY"`."""
    *sections, leaf = key.name.split(".")
    read = re.compile(rf"""(\.{leaf}\b|["']{leaf}["'])""")
    section = re.compile(rf"\b{sections[-1]}\b" if sections else r"\bcfg\b")
    # One function builds all poolers and gets the name of the head.
    if leaf.startswith("POOLER_"):
        section = re.compile(r"MODEL\[head\]|\b" + sections[-1] + r"\b")
    candidates = (text for text in sources if leaf in text)  # a plain search is faster
    assert any(read.search(text) and section.search(text) for text in candidates)


@pytest.mark.parametrize("name", NO_EFFECT)
@pytest.mark.parametrize("value", [False, 512, "anything", []])
def test_key_without_effect_is_dropped_with_the_reason(name, value, caplog):
    with caplog.at_level(logging.INFO):
        cfg = load_config(None, [name, value])
    assert cfg == load_config()
    assert f"overrides: {name} has no effect in detlite: {NO_EFFECT[name]}" in caplog.messages
    assert not {key.name for key in KEYS} & {name}


def test_restating_keys_are_not_in_the_schema():
    assert not RESTATING.keys() & {*NAMES}
    assert {key.origin for key in RESTATING.values()} <= {*NAMES}
