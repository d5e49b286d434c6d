"""Check the settings of the documentation site and the links of pages from outside docs/."""

import re
import runpy
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml


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
        ("docs/data.md", "[a](init.md), [b](#the-index)", "[a](init.md), [b](#the-index)"),
        ("docs/init.md", "[data.md](data.md#lvis)", "[Datasets](data.md#lvis)"),
        (
            "docs/benchmarks.md",
            "[a](../benchmarks/results/README.md)",
            "[a](benchmarks/results/README.md)",
        ),
        (
            "benchmarks/results/operators/cpu.md",
            "[a](../README.md), [b](../../../docs/init.md#forms), ![c](../models/scaling.png)",
            "[a](../README.md), [b](../../../init.md#forms), ![c](../models/scaling.png)",
        ),
        ("configs/README.md", "[yaml](coco/a.yaml)", "`configs/coco/a.yaml`"),
        ("docs/data.md", "[a](https://a.org/b.md)", "[a](https://a.org/b.md)"),
        ("docs/data.md", "```\n[a](../csrc/README.md)\n```", "```\n[a](../csrc/README.md)\n```"),
    ],
)
def test_links_are_rewritten_for_the_site(hooks, source, text, expected):
    assert hooks["site_links"](text, PurePosixPath(source)) == expected


def test_every_page_is_in_navigation(hooks, repo_root):
    settings = (repo_root / "mkdocs.yml").read_text()
    named = set(re.findall(r"^ +- .*: (\w+\.md)$", settings, re.MULTILINE))
    pages = {file.name for file in (repo_root / "docs").glob("*.md")}
    assert named == pages | hooks["OUTSIDE"].keys()


def test_site_loads_nothing_from_the_network(repo_root):
    settings = yaml.safe_load((repo_root / "mkdocs.yml").read_text())
    assert settings["theme"]["font"] is False
    assert "analytics" not in settings.get("extra", {})
    assert not settings.get("extra_javascript")


def test_images_of_pages_are_small(repo_root):
    images = [*(repo_root / "docs").rglob("*.jpg"), *(repo_root / "docs").rglob("*.svg")]
    images += (repo_root / "benchmarks" / "results").rglob("*.png")
    assert len(images) > 10
    assert not [file.name for file in images if file.stat().st_size > 150_000]
