"""The measured score threshold in checkpoints."""

from types import SimpleNamespace

import torch
import yaml

from detlite.conversion.checkpoint.files import Checkpoint, read_checkpoint, save_checkpoint
from detlite.engine.hooks.score_threshold import StoreScoreThreshold


def test_the_config_of_the_evaluated_checkpoint_has_the_threshold(tiny_config, tmp_path):
    cfg = tiny_config()
    final, average = tmp_path / "model_final.pth", tmp_path / "model_final_average.pth"
    for path in (final, average):
        weights = {"backbone.a": torch.arange(3.0)}
        saved = Checkpoint(path, weights, config=cfg.dump(), training={"iteration": 7})
        save_checkpoint(saved, last=path == final)
    hook = StoreScoreThreshold()
    hook.trainer = SimpleNamespace(
        checkpoint=final, cfg=cfg, test_sets=[SimpleNamespace(name="val")]
    )
    boxes, masks = ({"best_f1": {"score": score}} for score in (0.9, 0.43216))
    hook.after_evaluation({"val": {"bbox": boxes, "segm": masks}, "val (average)": {}})
    checkpoint = read_checkpoint(final)
    assert yaml.safe_load(checkpoint.config)["TEST"]["SCORE_THRESHOLD"] == 0.4322
    assert checkpoint.training == {"iteration": 7}
    assert torch.equal(checkpoint.model["backbone.a"], torch.arange(3.0))
    stored = yaml.safe_load(read_checkpoint(average).config)["TEST"]["SCORE_THRESHOLD"]
    assert stored == cfg.TEST.SCORE_THRESHOLD == 0
    assert (tmp_path / "last_checkpoint").read_text() == "model_final.pth\n"
    hook.after_evaluation({"val": {"bbox": {}}})  # nothing was detected
    assert yaml.safe_load(read_checkpoint(final).config)["TEST"]["SCORE_THRESHOLD"] == 0.4322
