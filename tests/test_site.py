"""Check the settings of the documentation site and the links of pages from outside docs/."""

import re
import runpy
from pathlib import Path, PurePosixPath
from typing import Any

import pytest


@pytest.fixture(scope="module")
def hooks(repo_root: Path) -> dict[str, Any]:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install 'detlite[docs]')")
    return runpy.run_path(str(repo_root / "docs" / "site_hooks.py"))


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("README.md", "[a](docs/data.md#an-index)", "[a](data.md#an-index)"),
        ("README.md", "![a](docs/images/demo.jpg)", "![a](images/demo.jpg)"),
        ("README.md", "[`rcnn.py`](detlite/modeling/rcnn.py)", "`detlite/modeling/rcnn.py`"),
        ("docs/architecture.md", "[k](../csrc/README.md#backward)", "[k](kernels.md#backward)"),
        ("docs/formats.md", "[data.md](data.md#lvis)", "[Datasets](data.md#lvis)"),
        (
            "benchmarks/results/operators/cpu.md",
            "[b](../../../docs/formats.md#forms), ![c](../libraries/same_backbone.png)",
            "[b](../../../formats.md#forms), ![c](../libraries/same_backbone.png)",
        ),
        ("docs/data.md", "[a](https://a.org/b.md)", "[a](https://a.org/b.md)"),
        ("docs/data.md", "```\n[a](../csrc/README.md)\n```", "```\n[a](../csrc/README.md)\n```"),
    ],
)
def test_links_are_rewritten_for_the_site(hooks, source, text, expected):
    assert hooks["site_links"](text, PurePosixPath(source)) == expected


def test_every_page_is_in_navigation_and_nothing_is_loaded_from_the_network(hooks, repo_root):
    settings = (repo_root / "mkdocs.yml").read_text()
    pages = {file.name for file in (repo_root / "docs").glob("*.md")}
    assert {*re.findall(r"^ +- .*: (\w+\.md)$", settings, re.M)} == pages | hooks["OUTSIDE"].keys()
    assert "font: false" in settings
    assert not re.search("analytics|extra_javascript", settings)


def test_images_of_pages_are_small(repo_root):
    images = [file for file in (repo_root / "docs").rglob("*") if file.suffix in (".jpg", ".svg")]
    images += (repo_root / "benchmarks" / "results").rglob("*.png")
    assert len(images) > 10
    assert not [file.name for file in images if file.stat().st_size > 150_000]
