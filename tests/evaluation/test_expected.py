"""Metrics against what a config expects."""

from __future__ import annotations

import logging

import pytest

from detlite.evaluation.expected import check_expected

METRICS = {"bbox": {"AP": 0.376, "AP50": None}, "segm": {"AP": 0.3}}


_AP = ("bbox", "AP")


@pytest.mark.parametrize(
    ("expected", "sigmas", "lines"),
    [
        ([], 4, []),
        ([(*_AP, (0.38, 0.001))], 4, ["PASS: bbox AP is 0.3760, expected 0.3760 to 0.3840"]),
        ([(*_AP, (0.38, 0.001))], 3, ["FAIL: bbox AP is 0.3760, expected 0.3770 to 0.3830"]),
        ([(*_AP, (0.37, 0.001))], 4, ["FAIL: bbox AP is 0.3760, expected 0.3660 to 0.3740"]),
        (
            [("segm", "AP", (0.3, 0.0)), ("keypoints", "AP", (0.5, 0.1))],
            1,
            [
                "PASS: segm AP is 0.3000, expected 0.3000 to 0.3000",
                "FAIL: keypoints AP is not measured, expected 0.4000 to 0.6000",
            ],
        ),
        (
            [("bbox", "AP50", (0.5, 0.1))],
            4,
            ["FAIL: bbox AP50 is not measured, expected 0.1000 to 0.9000"],
        ),
    ],
)
def test_every_metric_is_reported(expected, sigmas, lines, caplog):
    with caplog.at_level(logging.INFO):
        passed = check_expected(METRICS, expected, sigmas)
    assert caplog.messages == lines
    assert [record.levelname for record in caplog.records] == [
        "INFO" if line.startswith("PASS") else "ERROR" for line in lines
    ]
    assert passed == all(line.startswith("PASS") for line in lines)
