"""Test the generated reference of the config keys."""

from detlite.config import KEYS
from tools.config_page import config_page


def test_page_is_up_to_date(repo_root):
    """Run `python tools/config_page.py > docs/config.md` to update the page."""
    assert (repo_root / "docs" / "config.md").read_text() == config_page()


def test_every_key_has_its_values_default_and_description():
    rows = {line.split("`")[1]: line for line in config_page().splitlines() if line[:3] == "| `"}
    assert KEYS
    for key in KEYS:
        value, default, description = rows[key.name].removesuffix(" |").split(" | ")[1:4]
        assert value
        assert default in ("unset", f"`{key.default!r}`")
        assert description.replace("&lt;", "<") == key.doc
