"""Which form a folder's labels have, and what they say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from detlite.data.errors import DataError

from .labeled_dataset import LabelledSet
from .labelme import is_labelme, read_labelme
from .mask_files import is_mask_folder, read_mask_folder
from .voc_xml import is_voc, read_voc_folder
from .yolo import is_yolo, read_yolo

# In this order: a folder of YOLO's or VOC's may hold other json files, and VOC's has masks as well.
_FORMATS = {
    "YOLO": (is_yolo, read_yolo),
    "PASCAL VOC": (is_voc, read_voc_folder),
    "LabelMe": (is_labelme, read_labelme),
    "mask files": (is_mask_folder, read_mask_folder),
}


class UnknownFormError(DataError):
    """A folder without labels of any form that is known."""


def read_set(folder: Path) -> tuple[str, dict[str, LabelledSet]]:
    """The data set in a folder of YOLO's, PASCAL VOC's, LabelMe's or mask files.

    Returns:
        What form it has, and "train", and "val" where the set is divided already.

    Raises:
        UnknownFormError: it has none of these forms.
        DataError: something in it cannot be read.
    """
    for name, (recognise, read) in _FORMATS.items():
        if recognise(folder):
            return name, read(folder)
    kinds = Counter(file.suffix or file.name for file in folder.iterdir())
    holds = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5)) or "nothing"
    raise UnknownFormError(
        f"{folder}: holds no annotations that are known, but {holds}; looked for: COCO json, "
        "data.yaml or classes.txt (YOLO), *.xml or Annotations/*.xml (PASCAL VOC), json files "
        "beside pictures (LabelMe), folders images and masks"
    )
