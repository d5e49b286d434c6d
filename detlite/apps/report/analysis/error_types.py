"""What kinds of mistakes a detector makes, and what mending each would bring.

The kinds and rules are those of TIDE (Bolya et al., ECCV 2020, https://arxiv.org/abs/2008.08115).
A detection is right if it overlaps a free object of its category by FOREGROUND_OVERLAP, and has
nothing to do with an object that it overlaps by BACKGROUND_OVERLAP or less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detlite.evaluation.matching import interpolated_precision

from .cross_category import Across

FOREGROUND_OVERLAP, BACKGROUND_OVERLAP = 0.5, 0.1

# Of detections, in this order of precedence (localisation before classification); then of objects.
FALSE_POSITIVES = ("classification", "localisation", "both", "duplicate", "background")
KINDS = (*FALSE_POSITIVES, "missed")
CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, BACKGROUND = range(5)
RIGHT, IGNORED = -1, -2


@dataclass(frozen=True, eq=False)
class Errors:
    """What became of the D detections and G objects of `across`.

    Attributes:
        kinds: int64 [D], a place in FALSE_POSITIVES; or RIGHT; or IGNORED, within a crowd.
        objects: int64 [D], the object that was found, named or placed wrongly, or found before;
            -1: none.
        found_by: int64 [G], the detection that found it; -1: none.
        missed: bool [G]: not found, and no other mended mistake would find it.
        gains: for each of KINDS how much AP at FOREGROUND_OVERLAP, 0 to 1, grows if it is mended
            alone. A mistake of name or place is mended in the best detection of each object that
            is not found, all else is taken away.
        ap: before anything is mended; None where there is nothing to find.
    """

    across: Across
    kinds: np.ndarray
    objects: np.ndarray
    found_by: np.ndarray
    missed: np.ndarray
    gains: dict[str, float]
    ap: float | None

    def counts(self) -> dict[str, int]:
        """How many there are of each of KINDS."""
        counts = {kind: int((self.kinds == n).sum()) for n, kind in enumerate(FALSE_POSITIVES)}
        return counts | {"missed": int(self.missed.sum())}


def find_errors(across: Across) -> Errors:
    """Says of each detection and object what is wrong with it, if anything is."""
    detections, objects = across.pairing.pairs()
    same = across.detected[detections] == across.labelled[objects]
    crowd = across.truth.crowd[objects]
    matched, found_by = _match(across, same & ~crowd)
    own, own_object = across.best(same & ~crowd)
    other, other_object = across.best(~same & ~crowd)
    used, used_object = across.best(same & (found_by[objects] >= 0))
    nearest, _ = across.best(~crowd)
    in_crowd, _ = across.best(same & crowd)
    conditions = [
        matched >= 0,
        in_crowd > FOREGROUND_OVERLAP,
        (own >= BACKGROUND_OVERLAP) & (own <= FOREGROUND_OVERLAP),
        other >= FOREGROUND_OVERLAP,
        used >= FOREGROUND_OVERLAP,
        nearest <= BACKGROUND_OVERLAP,
    ]
    kinds = np.select(
        conditions,
        [RIGHT, IGNORED, LOCALISATION, CLASSIFICATION, DUPLICATE, BACKGROUND],
        BOTH,
    )
    named = np.select(
        [kinds == kind for kind in (RIGHT, LOCALISATION, CLASSIFICATION, DUPLICATE)],
        [matched, own_object, other_object, used_object],
        -1,
    )
    mended = _mendable(kinds, named, found_by)
    missed = (found_by < 0) & ~across.truth.crowd
    missed[named[mended]] = False
    ap, gains = _gains(across, kinds, named, mended, missed)
    return Errors(across, kinds, named, found_by, missed, gains, ap)


def _match(across: Across, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The object that each detection finds, int64 [D], and which finds each object, [G]; or -1.

    The best detections choose first, and take the free object that they overlap most.
    """
    chosen = np.flatnonzero(allowed & (across.overlaps >= FOREGROUND_OVERLAP))
    detections, objects = (part[chosen] for part in across.pairing.pairs())
    # Those of an image have falling scores.
    order = np.lexsort((-across.overlaps[chosen], detections))
    found = np.full(len(across.detected), -1)
    found_by = np.full(len(across.labelled), -1)
    for detection, wanted in zip(detections[order].tolist(), objects[order].tolist(), strict=True):
        if found[detection] < 0 and found_by[wanted] < 0:
            found[detection], found_by[wanted] = wanted, detection
    return found, found_by


def _mendable(kinds: np.ndarray, named: np.ndarray, found_by: np.ndarray) -> np.ndarray:
    """The detections that would find their object if they were mended: the best one of each."""
    wrong = np.flatnonzero((kinds == CLASSIFICATION) | (kinds == LOCALISATION))
    wrong = wrong[found_by[named[wrong]] < 0]
    return wrong[np.unique(named[wrong], return_index=True)[1]]


def _gains(
    across: Across, kinds: np.ndarray, named: np.ndarray, mended: np.ndarray, missed: np.ndarray
) -> tuple[float | None, dict[str, float]]:
    positives = np.bincount(
        across.labelled[~across.truth.crowd], minlength=len(across.category_ids)
    )
    known = positives > 0
    counted, right = kinds != IGNORED, kinds == RIGHT

    def ap(kept: np.ndarray, right: np.ndarray, categories: np.ndarray, find: np.ndarray) -> float:
        return _mean_precision(across.pairing.scores[kept], right[kept], categories[kept],
                               find, known)  # fmt: skip

    if not known.any():
        return None, dict.fromkeys(KINDS, 0.0)
    before = ap(counted, right, across.detected, positives)
    after = {}
    for number, kind in enumerate(FALSE_POSITIVES):
        fixed = np.zeros_like(right)
        if number in (CLASSIFICATION, LOCALISATION):
            fixed[mended[kinds[mended] == number]] = True
        categories = across.detected.copy()
        categories[fixed] = across.labelled[named[fixed]]
        kept = counted & ((kinds != number) | fixed)
        after[kind] = ap(kept, right | fixed, categories, positives)
    left = positives - np.bincount(across.labelled[missed], minlength=len(positives))
    after["missed"] = ap(counted, right, across.detected, left)
    # As in TIDE: less than nothing is an accident of the places at which precision is read.
    return before, {kind: max(value - before, 0.0) for kind, value in after.items()}


def _mean_precision(
    scores: np.ndarray,
    right: np.ndarray,
    categories: np.ndarray,
    positives: np.ndarray,
    known: np.ndarray,
) -> float:
    """AP of detections [D], the mean of the categories `known`, bool [K], but for those of which
    neither an object nor a detection is left."""
    order = np.lexsort((-scores, categories))
    right = right[order]
    bounds = np.searchsorted(categories[order], np.arange(len(positives) + 1))
    found = []
    for k in np.flatnonzero(known):
        own = right[bounds[k] : bounds[k + 1]]
        if positives[k]:
            ranks = np.flatnonzero(own) + 1
            found.append(float(interpolated_precision(ranks, positives[k]).mean()))
        elif len(own):
            found.append(0.0)
    return float(np.mean(found)) if found else 0.0
