"""What a report says of its numbers, and what to do about them."""

from __future__ import annotations

TITLES = {"bbox": "Boxes", "segm": "Masks", "keypoints": "Keypoints"}

# Name -> what it says.
METRICS = {
    "AP": "average precision, the mean over overlaps of 50 to 95 %: the one number to compare",
    "AP50": "a detection is right from 50 % overlap on: are objects found at all?",
    "AP75": "right from 75 % overlap on: are they outlined well?",
    "APs": "small objects, below 32 x 32 px",
    "APm": "medium objects, 32 x 32 to 96 x 96 px",
    "APl": "large objects, above 96 x 96 px",
    "AR": "average recall: the part of the objects that is found, whatever the scores are",
}
SIZES = {"APs": "small, below 32² px", "APm": "medium", "APl": "large, above 96² px"}

# Kind of mistake -> what it is, what to do about it.
MISTAKES = {
    "classification": (
        "right place, wrong category",
        "Look at the confusion matrix below. Check the labels of the categories that are mixed up, "
        "add pictures of them, or join categories that nobody can tell apart.",
    ),
    "localisation": (
        "right category, but the overlap is only 10 to 50 %",
        "Check that labelled outlines are tight and alike (detlite check). Train longer, or on "
        "larger images (INPUT.MIN_SIZE_TRAIN and INPUT.MIN_SIZE_TEST).",
    ),
    "both": (
        "wrong category, and the overlap is only 10 to 50 %",
        "Mend the two kinds above first; these mostly go with them.",
    ),
    "duplicate": (
        "the object was found already by a surer detection",
        "Lower MODEL.ROI_HEADS.NMS, the overlap from which on one of two detections is dropped.",
    ),
    "background": (
        "nothing is labelled there",
        "Look at the wrong detections below. If they show objects, labels are missing: complete "
        "them. If not, train longer, and add pictures of what they show.",
    ),
    "missed": (
        "no detection comes near the object",
        "Look at the missed objects below, and at detlite browse. If they are small, raise "
        "INPUT.MIN_SIZE_TRAIN and INPUT.MIN_SIZE_TEST, or lower MODEL.RPN.ANCHOR_SIZES. If they "
        "are rare, add pictures of them.",
    ),
}


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction in percent, without the sign; "n/a" for None."""
    return "n/a" if value is None else f"{100 * value:.{digits}f}"


def calibration_verdict(error: float | None, excess: float | None) -> str:
    """What the calibration error and the mean of score minus precision, 0 to 1, mean."""
    if error is None or excess is None:
        return "There are no detections."
    text = f"Scores are off by {percent(error)} points in the mean (ECE)."
    if error < 0.05:
        return f"{text} They can be read as probabilities."
    if abs(excess) < 0.02:
        return f"{text} Some are too high and some too low."
    way = "higher" if excess > 0 else "lower"
    return (
        f"{text} They are {way} than the part of detections that is right, by "
        f"{percent(abs(excess))} points: do not read a score as a probability."
    )
