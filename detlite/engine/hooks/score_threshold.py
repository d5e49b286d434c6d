"""Store the score threshold that an evaluation measured in the evaluated checkpoint."""

from dataclasses import replace
from typing import Any

from detlite.conversion.checkpoint.files import read_checkpoint, save_checkpoint
from detlite.distributed import is_main
from detlite.engine.run_files import AVERAGE_CHECKPOINT, FINAL_CHECKPOINT

from .base import Hook
from .ema import EMA_SUFFIX


class StoreScoreThreshold(Hook):
    """Writes TEST.SCORE_THRESHOLD into the config of each evaluated checkpoint.

    It is the threshold of the highest F1 on the first test set, of masks if the model has them.
    """

    def after_evaluation(self, metrics: dict[str, dict[str, Any]]) -> None:
        checkpoint = self.trainer.checkpoint
        files = [("", checkpoint)]
        if checkpoint.name == FINAL_CHECKPOINT:
            files.append((EMA_SUFFIX, checkpoint.with_name(AVERAGE_CHECKPOINT)))
        for suffix, path in files:
            kinds = metrics.get(self.trainer.test_sets[0].name + suffix, {})
            score = measured_threshold(kinds)
            if is_main() and score and path.exists():
                cfg = self.trainer.cfg.clone()
                cfg.defrost()
                cfg.TEST.SCORE_THRESHOLD = score
                save_checkpoint(replace(read_checkpoint(path), config=cfg.dump()), last=False)


def measured_threshold(kinds: dict[str, Any]) -> float:
    """Return the score of the best F1 in the metrics of a dataset; 0 if there is none."""
    best = kinds.get("segm", kinds.get("bbox", {})).get("best_f1", {})
    return round(float(best.get("score", 0.0)), 4)
