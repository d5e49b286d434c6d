"""Files of other programs that are given as configs."""

from __future__ import annotations

from typing import Any

_DETECTRON2 = {"WEIGHTS", "ANCHOR_GENERATOR", "PROPOSAL_GENERATOR"}  # of its MODEL section
_MIGRATING = "docs/migrating.md says what becomes of its keys"


def whose_keys(content: dict[str, Any]) -> str:
    """Whose file it is that has such keys, as the end of a message, or ""."""
    model = content.get("MODEL")
    sections = model if isinstance(model, dict) else {}
    if content.keys() >= {"images", "annotations"}:
        owner = "this is an annotation file: `detlite init --data FILE` writes a config for it"
    elif "names" in content and content.keys() & {"nc", "train", "val"}:
        owner = "this is YOLO's data.yaml: `detlite init --data FOLDER` writes a config for it"
    elif "VERSION" in content or _DETECTRON2 & sections.keys():
        owner = f"this is a config of detectron2: {_MIGRATING}"
    elif {"epochs", "imgsz"} & content.keys():
        owner = "these are settings of ultralytics: `detlite init --data FOLDER` writes a config"
    else:
        return ""
    return f"; {owner}"
