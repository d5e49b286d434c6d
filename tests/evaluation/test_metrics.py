"""Format metrics, and compare them with expected values."""

import json
import logging
import pickle

import pytest

from detlite.evaluation.metrics import MetricValue, check_expected, format_table

METRICS = {
    "bbox": {"AP": 0.5, "AP50": 0.75, "APs": None, "per_category": {"cat": 1.0, "dog": None}},
    "segm": {"AP": 1.0, "AP50": 1.0, "APs": None, "per_category": {"cat": 0.25, "dog": None}},
}


def test_rows_and_columns():
    assert format_table(METRICS).splitlines() == [
        "         AP   AP50    APs",
        "bbox   50.0   75.0    n/a",
        "segm  100.0  100.0    n/a",
    ]
    # Kinds with different columns.
    metrics = {"bbox": {"AP": 0.5, "AR1": 0.25}, "keypoints": {"AP": None, "AR": 1.0}}
    assert format_table(metrics).splitlines() == [
        "              AP    AR1     AR",
        "bbox        50.0   25.0       ",
        "keypoints    n/a         100.0",
    ]


def test_numbers_that_are_no_fractions_are_printed_as_they_are():
    counts = {"error": MetricValue(0.53), "missed": MetricValue(0.5, is_fraction=True)}
    lines = ["         error  missed", "counts    0.53    50.0"]
    assert format_table({"counts": counts}).splitlines() == lines
    sent = pickle.loads(pickle.dumps(MetricValue(2.0, lower_is_better=True)))
    assert (sent, sent.lower_is_better, sent.is_fraction) == (2.0, True, False)
    assert json.dumps(sent) == "2.0"


MEASURED = {"bbox": {"AP": 0.376, "AP50": None}, "segm": {"AP": 0.3}}
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
def test_expected_results(expected, sigmas, lines, caplog):
    with caplog.at_level(logging.INFO):
        check_expected(MEASURED, expected, sigmas)
    assert caplog.messages == lines
    assert [record.levelname for record in caplog.records] == [
        "INFO" if line.startswith("PASS") else "ERROR" for line in lines
    ]
