"""Keypoints and the heat map cells that they are trained on (Mask R-CNN, section 5).

Keypoints are float `[..., 3]` of (x, y, visibility) with x and y in pixels. Visibility is COCO's:
0 not labelled, 1 hidden, 2 visible.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# COCO stores keypoints as pixel indices, but boxes and masks in continuous coordinates.
PIXEL_CENTER = 0.5


def to_heatmap_cells(keypoints: Tensor, boxes: Tensor, resolution: int) -> tuple[Tensor, Tensor]:
    """Find the cells of the M x M heat maps of boxes `[R, 4]` that contain keypoints `[R, P, 3]`.

    Returns:
        The cells int64 `[R, P]` as row * M + column, and bool `[R, P]`, True if the keypoint is
        labelled and inside the box. The cell of other keypoints is 0.
    """
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    xy = keypoints[..., :2]
    sides = (high - low).clamp(min=1e-6)  # infinity has no integer
    cell = ((xy - low) * (resolution / sides)).floor().long()
    cell = torch.where(xy == high, resolution - 1, cell)  # the far edge belongs to the last cell
    valid = ((cell >= 0) & (cell < resolution)).all(-1) & (keypoints[..., 2] > 0)
    return (cell[..., 1] * resolution + cell[..., 0]) * valid, valid


# Left and right in English, German, French, Spanish, Italian and Portuguese, also within words, and
# the letters of "l_eye", "eye-R", "eyeL", "lEye" and "LEye".
_SIDES = (
    r"left|link(?:s|e[mnrs]?)|gauche|izquierd[ao]|sinistr[ao]|esquerd[ao]",
    r"right|recht(?:s|e[mnrs]?)|droite?|derech[ao]|destr[ao]|direit[ao]",
)
_LETTER = "(?<![A-Za-z])[{0}](?![A-Za-z])|(?<=[a-z])[{1}](?![a-z])|(?<![A-Za-z])[{0}](?=[A-Z][a-z])"
_SIDE = re.compile(
    "|".join(f"(?P<{side}>(?i:{words})|{_LETTER.format(side + side.upper(), side.upper())})"
             for side, words in zip("lr", _SIDES, strict=True))
)  # fmt: skip


def _key(name: str, mirrored: bool = False) -> str:
    """Return a name in lower case, with "<" and ">" for left and right, and single spaces."""
    marked = _SIDE.sub(lambda side: "<>"[(side.lastgroup == "r") != mirrored], name)
    return re.sub(r"[\s_.-]+", " ", marked).strip().lower()


def flip_order(names: Sequence[str]) -> list[int]:
    """Return for each keypoint the index of the one that replaces it in a mirrored image.

    Names that differ only in the side are pairs: "left_eye" and "right_eye", "L_eye" and "R_eye",
    "eyeL" and "eyeR", "linkes Auge" and "rechtes Auge", and the like.
    """
    indices = {_key(name): index for index, name in enumerate(names)}
    order = [indices.get(_key(name, mirrored=True), index) for index, name in enumerate(names)]
    # Names may be repeated.
    return [other if order[other] == index else index for index, other in enumerate(order)]


def has_sides(names: Sequence[str]) -> bool:
    """Return True if mirroring exchanges some of the keypoints, or there is only one."""
    return len(names) < 2 or flip_order(names) != list(range(len(names)))


def with_sides(names: Sequence[str], pairs: Sequence[Sequence[str]]) -> list[str]:
    """Rename keypoints so that `flip_order` also finds these pairs of names."""
    sides = {
        name: f"{side} {number}"
        for number, pair in enumerate(pairs)
        for side, name in zip(("left", "right"), pair, strict=True)
    }
    return [sides.get(name, name) for name in names]


def doubtful_sides(names: Sequence[str]) -> list[str]:
    """Return names that `flip_order` leaves in place although they may have another side.

    They name a side, or differ from another such name in one word: "LF paw" and "RF paw".
    """
    alone = [name for name, index in zip(names, flip_order(names), strict=True)
             if names[index] == name]  # fmt: skip
    words = [re.findall(r"[a-z]+|\d+", name.lower()) for name in alone]
    return [
        name
        for name, parts in zip(alone, words, strict=True)
        if _SIDE.search(name)
        or any(
            len(parts) == len(other) > 1
            and sum(a != b for a, b in zip(parts, other, strict=True)) == 1
            for other in words
        )
    ]


def keypoint_names(categories: Sequence[dict[str, Any]]) -> list[str]:
    """Return the keypoint names of the first category that has any; all categories share them."""
    for row in categories:
        names = row.get("keypoints")
        if names and isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
    return []
