"""Recognize files of other programs that are given as configs."""

from typing import Any

# Keys of detectron2's MODEL section.
_DETECTRON2 = {"WEIGHTS", "ANCHOR_GENERATOR", "PROPOSAL_GENERATOR"}


def recognize(content: dict[str, Any]) -> str:
    """Return what kind of file has these keys and what to do, as the end of a message, or ""."""
    model = content.get("MODEL")
    model_keys = model if isinstance(model, dict) else {}
    if content.keys() >= {"images", "annotations"}:
        advice = "an annotation file: `detlite init --data FILE` writes a config for it"
    elif "names" in content and content.keys() & {"nc", "train", "val"}:
        advice = "YOLO's data.yaml: `detlite init --data FOLDER` writes a config for it"
    elif "VERSION" in content or _DETECTRON2 & model_keys.keys():
        advice = "a config of detectron2: see docs/migrating.md"
    elif {"epochs", "imgsz"} & content.keys():
        advice = "a settings file of ultralytics: `detlite init --data FOLDER` writes a config"
    else:
        return ""
    return f". This is {advice}"
