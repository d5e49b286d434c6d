"""What `mkdocs build` does beside its own: pages of the repository that lie outside of docs/.

README.md is the home page, and the other texts of `OUTSIDE` are pages, each from its one file, so
that links work where the repository is read, too. Links from any page to such a text lead to its
page; links to other files outside of docs/ become their path, as there is no address of the
repository to lead to. Where a link's text is the path of a page, the page's title stands instead.
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
    "changelog.md": "CHANGELOG.md",
}
_PAGES = {source: page for page, source in OUTSIDE.items()}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    name = page.file.src_uri
    if name == "index.md":  # whose table of links is enough
        page.meta["hide"] = ["toc"]
    return site_links(markdown, PurePosixPath(OUTSIDE.get(name, f"docs/{name}")))


def site_links(markdown: str, source: PurePosixPath) -> str:
    """The text of a file of the repository with its links as the site has them; code stays."""

    def link(found: re.Match[str]) -> str:
        picture, text, path, anchor = found.groups("")
        if not path:
            return found[0]
        target = os.path.normpath(source.parent / path)
        if text.endswith(".md"):
            text = (ROOT / target).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        if target in _PAGES:
            return f"{picture}[{text}]({_PAGES[target]}{anchor})"
        if target.startswith("docs/"):
            return f"{picture}[{text}]({target.removeprefix('docs/')}{anchor})"
        return f"`{target}`"

    parts = _CODE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)
