"""What the documentation points at is there: links, headings and config keys."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from detlite.config import KEYS, load_config
from detlite.config.maskrcnn_benchmark import NO_EFFECT, RESTATING

ROOT = Path(__file__).parents[1]
_OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "configs/README.md", "csrc/README.md")
PAGES = sorted([*(ROOT / name for name in _OUTSIDE), *(ROOT / "docs").glob("*.md")])
_NAMES = {key.name for key in KEYS} | NO_EFFECT.keys() | RESTATING.keys()
_SECTIONS = {name.rpartition(".")[0] for name in _NAMES}


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {target}"


# The page about other frameworks also names their keys.
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "migrating.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_keys_exist(page):
    named = re.findall(
        r"\b(?:MODEL|INPUT|DATASETS|DATALOADER|SOLVER|TEST)\.[A-Z0-9_.]*[A-Z0-9]\b(?![*{])",
        page.read_text(),
    )
    assert not [name for name in named if name not in _NAMES | _SECTIONS]


def test_configs_load(tmp_path):
    """Every block of YAML that is a config, not an entry of one."""
    count = 0
    for page in PAGES:
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            if block.startswith("- "):
                continue
            file = tmp_path / "config.yaml"
            file.write_text(re.sub(r"(?m)^IMPORTS: .*", "", block))  # files of the reader's own
            load_config(file)
            count += 1
    assert count > 4


def test_the_table_of_extras_is_pyproject():
    project = (ROOT / "pyproject.toml").read_text()
    [section] = re.findall(r"(?ms)^\[project\.optional-dependencies\]\n(.*?)^\[", project)
    stated = {
        name: [re.split("[<>=]", package)[0] for package in ast.literal_eval(packages)]
        for name, packages in re.findall(r"(?m)^(\w+) = (\[.*\])$", section)
    }
    page = (ROOT / "docs" / "installing.md").read_text()
    told = re.findall(r"(?m)^\| `(\w+)` \| (.*?) \|", page.partition("## Extras")[2])
    assert {name: packages.split(", ") for name, packages in told} == stated
    assert "pretrained" in stated


def test_broken_links_are_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading, with `code`\n```\n# a comment\n```\n[x](none.md)\n")
    assert anchors(page) == {"a-heading-with-code"}
    with pytest.raises(AssertionError, match=r"page\.md links to none\.md"):
        test_links_lead_somewhere(page)
