"""MkDocs hooks: add pages from outside docs/ to the site and rewrite the links to them.

README.md becomes the home page. The other files of `OUTSIDE` and the pages of benchmarks/results/
become pages, too. Their sources stay in one place, so links also work in the repository. A link to
any other file outside docs/ is shown as its path. A link whose text is the name of a Markdown file
is shown with the title of that page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "index.md": "README.md",
    "configs.md": "configs/README.md",
    "kernels.md": "csrc/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
}
# Pages and figures of measurements, at the same path in the site as in the repository.
RESULTS = {
    str(file.relative_to(ROOT).as_posix())
    for file in (ROOT / "benchmarks" / "results").rglob("*")
    if file.suffix in (".md", ".png")
}
_PAGES = {source: page for page, source in OUTSIDE.items()} | {path: path for path in RESULTS}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and figures from outside docs/."""
    for source, page in _PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page."""
    name = page.file.src_uri
    if name == "index.md":  # whose table of links is enough
        page.meta["hide"] = ["toc"]
    source = name if name in RESULTS else OUTSIDE.get(name, f"docs/{name}")
    return site_links(markdown, PurePosixPath(source))


def site_links(markdown: str, source: PurePosixPath) -> str:
    """Return the text of a repository file with links into the site; code blocks stay unchanged."""
    page = _PAGES.get(str(source), str(source).removeprefix("docs/"))

    def link(match: re.Match[str]) -> str:
        image, text, path, anchor = match.groups("")
        if not path:
            return match[0]
        target = os.path.normpath(source.parent / path)
        if text.endswith(".md"):
            text = (ROOT / target).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        if target in _PAGES or target.startswith("docs/"):
            target = _PAGES.get(target, target.removeprefix("docs/"))
            return (
                f"{image}[{text}]({os.path.relpath(target, os.path.dirname(page) or '.')}{anchor})"
            )
        return f"`{target}`"

    parts = _CODE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)
