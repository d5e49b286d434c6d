"""The reference page of the config, `docs/config.md`, from the schema.

`python -m detlite.config.document > docs/config.md` writes it; a test keeps it up to date.
"""

from __future__ import annotations

from .schema import KEYS, NO_EFFECT

_INTRODUCTION = """\
# Configuration keys

A config is a YAML file that states what differs from the defaults below. `_BASE_: other.yaml`, or a
list of such paths (relative to the file; later ones go over earlier ones), is read first.
`KEY VALUE` pairs on the command line come last. Unknown keys, values given twice, wrong types and
impossible values are refused, with the file, the key and the nearest valid key.

Names follow maskrcnn-benchmark. A *derived* key may be left out; given, it must agree with the key
that it restates.

This page is generated: `python -m detlite.config.document > docs/config.md`.
"""


def config_page() -> str:
    """The whole page as Markdown."""
    lines = [_INTRODUCTION]
    section = None
    for key in KEYS:
        found = key.name.rpartition(".")[0] or "General"
        if found != section:
            section = found
            lines += [f"\n## {section}\n", "| key | default | meaning |", "|---|---|---|"]
        default = "derived" if key.derived_type else f"`{key.default!r}`"
        lines.append(f"| `{key.name}` | {default} | {key.doc} |")
    lines += ["\n## Keys of maskrcnn-benchmark without effect\n", "| key | why |", "|---|---|"]
    lines += [f"| `{name}` | {reason} |" for name, reason in NO_EFFECT.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(config_page(), end="")
