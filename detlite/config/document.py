"""The reference page of the config, `docs/config.md`, from the schema.

`python -m detlite.config.document > docs/config.md` writes it; a test keeps it up to date.
"""

from __future__ import annotations

import re
from itertools import groupby

from .maskrcnn_benchmark import NO_EFFECT, RESTATING
from .schema import KEYS, Key

_INTRODUCTION = """\
# Configuration keys

A config is a YAML file that states what differs from the defaults below. `_BASE_: other.yaml`, or a
list of such paths (relative to the file; later ones go over earlier ones), is read first.
`KEY VALUE` pairs on the command line come last. A list is written `[1, 2]` or `(1, 2)`, and an int
will do for a float. Unknown keys, values given twice, wrong types and impossible values are
refused, with the file, the key and the nearest valid key.

Names follow maskrcnn-benchmark. Its keys that only restate others are at the end: its files may
state them.

This page is generated: `python -m detlite.config.document > docs/config.md`.
"""

_RESTATING = """\
A file or an override may state them; a resolved config has none of them. One that contradicts the
key that it restates is refused. Beside `META_ARCHITECTURE: GeneralizedRCNN`, `RETINANET_ON` and
`RPN_ONLY` name the detector; `TRANS_FUNC`, `STEM_FUNC` and `USE_GN` name a norm that is not stated.
`TEST.DETECTIONS_PER_IMG` counts for a RetinaNet alone.
"""


def config_page() -> str:
    """The whole page as Markdown."""
    lines = [_INTRODUCTION]
    for section, keys in groupby(KEYS, lambda key: key.name.rpartition(".")[0]):
        lines += [f"\n## {section or 'General'}\n", "| key | value | default | meaning |"]
        lines.append("|---|---|---|---|")
        for key in keys:
            default = "left out" if key.default is None else f"`{key.default!r}`"
            meaning = key.doc.replace("<", "&lt;")  # which would begin a tag
            lines.append(f"| `{key.name}` | {_values(key)} | {default} | {meaning} |")
    lines += ["\n## Keys of maskrcnn-benchmark that restate others\n", _RESTATING]
    lines += ["| key | restates |", "|---|---|"]
    lines += [f"| `{key.name}` | `{key.origin}` |" for key in RESTATING.values()]
    lines += ["\n## Keys of maskrcnn-benchmark without effect\n", "| key | why |", "|---|---|"]
    lines += [f"| `{name}` | {reason} |" for name, reason in NO_EFFECT.items()]
    return "\n".join(lines) + "\n"


def _values(key: Key) -> str:
    """The type of a key's values, and which of that type it takes."""
    kind = key.optional_type or type(key.default)
    if kind in (tuple, list):
        return "list"
    wrong = "?" if kind is str else float("nan")  # which no check takes
    wanted = key.check(wrong) if key.check else None
    if kind is str:
        return re.sub(r"('[^']*')", r"`\1`", wanted) if wanted else "str"
    return f"{kind.__name__}, {wanted}" if wanted else kind.__name__


if __name__ == "__main__":
    print(config_page(), end="")
