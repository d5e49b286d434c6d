"""Whether metrics are what a config expects of them: a check for runs that repeat a known one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

logger = logging.getLogger(__name__)


def check_expected(
    metrics: dict[str, dict[str, Any]], expected: Sequence[Sequence[Any]], sigmas: float
) -> bool:
    """Compares metrics with TEST.EXPECTED_RESULTS and logs PASS or FAIL for each.

    Args:
        metrics: `{"bbox": {"AP": 0..1, ...}, ...}` of one data set.
        expected: rows (kind, metric, (mean, standard deviation)), such as
            ("bbox", "AP", (0.377, 0.002)).
        sigmas: how many standard deviations a metric may be off.

    Returns:
        Whether all are as expected. A metric that was not measured is not.
    """
    passed = True
    for kind, name, (mean, deviation) in expected:
        value = metrics.get(kind, {}).get(name)
        low, high = mean - sigmas * deviation, mean + sigmas * deviation
        fine = value is not None and low <= value <= high
        passed = passed and fine
        logger.log(
            logging.INFO if fine else logging.ERROR,
            "%s: %s %s is %s, expected %.4f to %.4f",
            "PASS" if fine else "FAIL", kind, name,
            "not measured" if value is None else f"{value:.4f}", low, high,
        )  # fmt: skip
    return passed
