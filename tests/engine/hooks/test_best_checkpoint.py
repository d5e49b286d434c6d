from __future__ import annotations

import pytest

from detlite.config import ConfigError
from detlite.engine.hooks.best_checkpoint import BestCheckpoint


@pytest.fixture
def evaluate(tmp_path):
    """Tells of an evaluation with a value of val/bbox/AP."""

    def tell(best, value, number):
        checkpoint = tmp_path / f"model_{number}.pth"
        checkpoint.write_text(str(number))
        best.update({"val": {"bbox": {"AP": value}}, "other": {"bbox": {"AP": 9.0}}}, checkpoint)

    return tell


@pytest.mark.parametrize("metric", ["bbox/AP", "val/bbox/AP"])
def test_the_best_is_kept(evaluate, tmp_path, metric):
    best = BestCheckpoint(metric)
    for number, value in enumerate([None, 0.1, 0.3, 0.2, 0.3]):
        evaluate(best, value, number)
    assert (tmp_path / "model_best.pth").read_text() == "2"
    assert best.value == 0.3
    assert not best.is_out_of_patience


def test_patience_ends(evaluate):
    best = BestCheckpoint("bbox/AP", patience=2)
    out = []
    for number, value in enumerate([0.1, 0.0, 0.2, 0.1, 0.2]):
        evaluate(best, value, number)
        out.append(best.is_out_of_patience)
    assert out == [False, False, False, False, True]
    again = BestCheckpoint("bbox/AP", patience=2)
    again.load_state_dict(best.state_dict())
    assert again.is_out_of_patience
    assert again.value == 0.2


def test_without_a_metric_nothing_is_kept(evaluate, tmp_path):
    evaluate(BestCheckpoint(""), 0.5, 1)
    assert not (tmp_path / "model_best.pth").exists()


def test_bad_input(evaluate):
    with pytest.raises(ConfigError, match=r"BEST_METRIC bbox/ap is not .*: val/bbox/AP, other/b"):
        evaluate(BestCheckpoint("bbox/ap"), 0.5, 1)
    with pytest.raises(ConfigError, match=r"SOLVER\.PATIENCE needs a metric"):
        BestCheckpoint("", patience=1)
