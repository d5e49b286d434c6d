"""Texts of a report: explanations of metrics and error types, and advice."""

from detlite.apps.drawing.html_page import percent

TITLES = {"bbox": "Boxes", "segm": "Masks", "keypoints": "Keypoints"}

METRICS = {
    "AP": "average precision, mean over IoU thresholds from 50 to 95 %: the main metric",
    "AP50": "AP at 50 % IoU: are objects detected at all?",
    "AP75": "AP at 75 % IoU: are outlines accurate?",
    "APs": "AP of small objects, below 32 x 32 px",
    "APm": "AP of medium objects, 32 x 32 to 96 x 96 px",
    "APl": "AP of large objects, above 96 x 96 px",
    "AR": "average recall: fraction of the objects that are detected, at any score",
}
SIZES = {"APs": "small, below 32² px", "APm": "medium", "APl": "large, above 96² px"}

# Error type -> explanation and advice.
ERRORS = {
    "classification": (
        "right place, wrong category",
        "Look at the confusion matrix below. Check the labels of categories that are confused, "
        "add images of them, or merge categories that nobody can distinguish.",
    ),
    "localisation": (
        "right category, but the IoU is only 10 to 50 %",
        "Check that labels outline objects tightly (detlite check). Train longer, or on larger "
        "images (INPUT.MIN_SIZE_TRAIN and INPUT.MIN_SIZE_TEST).",
    ),
    "both": (
        "wrong category, and the IoU is only 10 to 50 %",
        "Fix the two types above first; these errors usually disappear with them.",
    ),
    "duplicate": (
        "another detection with a higher score already matches the object",
        "Lower MODEL.ROI_HEADS.NMS, the IoU above which one of two detections is dropped.",
    ),
    "background": (
        "no label there",
        "Look at the false positives below. If they show objects, add the missing labels. "
        "Otherwise train longer, and add images of what they show.",
    ),
    "missed": (
        "no detection is close to the object",
        "Look at the missed objects below, and at detlite browse. If they are small, raise "
        "INPUT.MIN_SIZE_TRAIN and INPUT.MIN_SIZE_TEST, or lower MODEL.RPN.ANCHOR_SIZES. If they "
        "are rare, add images of them.",
    ),
}


def calibration_verdict(error: float | None, excess: float | None) -> str:
    """Describe the expected calibration error, 0 to 1, and the mean of score minus precision."""
    if error is None or excess is None:
        return "There are no detections."
    text = f"The mean calibration error of scores (ECE) is {percent(error)} points."
    if error < 0.05:
        return f"{text} Scores can be read as probabilities."
    if abs(excess) < 0.02:
        return f"{text} Some scores are too high and some too low."
    direction = "higher" if excess > 0 else "lower"
    return (
        f"{text} Scores are {direction} than the precision by {percent(abs(excess))} points: do "
        "not read them as probabilities."
    )
