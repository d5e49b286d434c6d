"""Interrupts training runs at random until the time is over, and compares what comes of them.

    python tests/soak/soak.py --minutes 60 --seed 0 --folder output/soak

A round is a small Mask R-CNN with settings drawn from the round's seed: it is trained once without
interruption, then a few times with troubles (signals, dead loader processes, full disks, slow
pictures), resumed until it ends. Weights, optimizer, generators, metrics and results must be those
of the unbroken run, bit for bit, and every process must end with a status of its trouble.

log.jsonl in the folder has a line for each process, summary.json their counts. At the first
difference the program ends with status 1, names the round's seed, and leaves the folder as it is.
The same seed draws the same settings and troubles; when they strike depends on the machine's speed.

Processes are forked from this one, which has imported everything, so that time is spent in
training. In a folder on a file system of less than 1 GiB, such as a small tmpfs, disks are really
filled; elsewhere files are limited in size (RLIMIT_FSIZE), which fails writes as well.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from tests.soak.compare import first_difference
from tests.soak.process import ROOT, Process

RUNS = 3  # broken ones of a round
LIVES = 6  # processes of a run that meet a trouble
SMALL_DISK = 2**30  # bytes
CONFIG = """
_BASE_: {root}/configs/_base_/from_scratch_fpn.yaml
DATASETS:
  ROOT: {data}
  CATALOG:
    - {{name: shapes_train, type: shapes, path: shapes, split: train, images: 8, seed: 1}}
    - {{name: shapes_val, type: shapes, path: shapes, split: val, images: 4, seed: 1}}
  TRAIN: [shapes_train]
  TEST: [shapes_val]
MODEL:
  MASK_ON: True
  DEVICE: cpu
  RESNETS: {{NORM: BN, STEM_OUT_CHANNELS: 8, RES2_OUT_CHANNELS: 8, BACKBONE_OUT_CHANNELS: 16}}
  RPN: {{ANCHOR_SIZES: [8, 16, 32, 64, 128], PRE_NMS_TOP_N_TRAIN: 100, PRE_NMS_TOP_N_TEST: 100,
        FPN_POST_NMS_TOP_N_TRAIN: 50, FPN_POST_NMS_TOP_N_TEST: 30}}
  ROI_HEADS: {{SCORE_THRESH: 0.0, DETECTIONS_PER_IMG: 20}}
  ROI_BOX_HEAD: {{NUM_CLASSES: 6, MLP_HEAD_DIM: 16}}
  ROI_MASK_HEAD: {{CONV_LAYERS: [16]}}
INPUT: {{MIN_SIZE_TRAIN: [64, 96], MIN_SIZE_TEST: 96}}
SOLVER: {{IMS_PER_BATCH: 2, STEPS: [], LOG_PERIOD: 1, WARMUP_ITERS: 3}}
TEST: {{IMS_PER_BATCH: 2}}
"""
SETTINGS: dict[str, list[Any]] = {
    "DATALOADER.NUM_WORKERS": [0, 1, 1, 2],
    "DTYPE": ["float32", "bfloat16", "float16"],
    "SOLVER.MAX_ITER": [8, 12, 16],
    "SOLVER.OPTIMIZER": ["SGD", "AdamW"],
    "SOLVER.LR_SCHEDULE": ["multistep", "cosine"],
    "SOLVER.ACCUMULATION_STEPS": [1, 2],
    "SOLVER.CLIP_GRAD_NORM": [0.0, 1.0],
    "SOLVER.EMA_DECAY": [0.0, 0.9],
    "SOLVER.MAX_SKIPPED_STEPS": [0, 2],
    "SOLVER.CHECKPOINT_PERIOD": [1, 3, 5],
    "SOLVER.CHECKPOINTS_KEPT": [0, 1, 2],
    "SOLVER.TEST_PERIOD": [0, 4],
    "SOLVER.BEST_METRIC": ["", "bbox/AP"],
}
# The statuses that a process may end with; 0: the trouble came too late.
STATUSES = {
    "none": {0},
    "SIGKILL": {0, -signal.SIGKILL},
    "SIGTERM": {0, 75, -signal.SIGTERM},
    "SIGHUP": {0, 75, -signal.SIGHUP},
    "SIGINT": {0, 130, -signal.SIGINT},
    "SIGTERM twice": {0, 75, -signal.SIGTERM},
    "loader killed": {0, 2},
    "file limit": {0, 2},
    "full disk": {0, 2},
}


class Finding(Exception):
    """What should not have happened."""


class Soak:
    """Rounds in a folder, and the log of their processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "config.yaml"
        self._config.write_text(CONFIG.format(root=ROOT, data=folder / "data"))
        self._log = (folder / "log.jsonl").open("w")
        self._is_small = shutil.disk_usage(folder).total < SMALL_DISK
        self.statuses: dict[str, Counter[str]] = {}
        self.counts: Counter[str] = Counter()

    def round(self, seed: int, stop: float) -> None:
        """The runs of a seed; those that begin after `stop` (of time.monotonic) are left out.

        Raises:
            Finding: a difference, or a status that does not belong to the trouble.
        """
        rng = random.Random(seed)
        settings = {key: rng.choice(values) for key, values in SETTINGS.items()} | {"SEED": seed}
        runs = self._folder / "runs"
        shutil.rmtree(runs, ignore_errors=True)
        runs.mkdir()
        started = time.monotonic()
        self._process(seed, runs / "unbroken", settings, "none", rng, 0.0)
        seconds = time.monotonic() - started
        for number in range(RUNS):
            if number and time.monotonic() > stop:
                return
            broken = runs / f"broken{number}"
            ended, lives = False, 0
            while not ended:
                kinds = [kind for kind in STATUSES if kind != "none"]
                if not self._is_small:
                    kinds.remove("full disk")
                if not settings["DATALOADER.NUM_WORKERS"]:
                    kinds.remove("loader killed")
                kind = rng.choice(kinds) if lives < LIVES else "none"
                ended = self._process(seed, broken, settings, kind, rng, seconds) == 0
                lives += 1
            if found := first_difference(runs / "unbroken", broken):
                raise Finding(f"{broken} is not {runs / 'unbroken'}: {found}")
            shutil.rmtree(broken)
            self.counts["broken runs"] += 1
            self.counts["interruptions"] += lives - 1
        self.counts["rounds"] += 1

    def _process(
        self, seed: int, output: Path, settings: dict[str, Any], kind: str, rng: random.Random,
        seconds: float,
    ) -> int:  # fmt: skip
        """One process of a run, and its trouble; returns its status."""
        args = ["--config", str(self._config), "--resume", "OUTPUT_DIR", str(output)]
        args += [str(part) for pair in settings.items() for part in pair]
        delay, slow = rng.uniform(0, 1.1 * seconds), rng.choice([0.0, 0.0, 0.2])
        # From a line of the log to more than a checkpoint.
        space = int(math.exp(rng.uniform(math.log(500), math.log(4e6))))
        to_all, again = rng.random() < 0.5, rng.uniform(0, 0.3)
        ballast = self._folder / "ballast"
        if kind == "full disk":
            free = shutil.disk_usage(self._folder).free
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(free - space, 1))
        # Not on the disk that is filled.
        printed = Path(tempfile.gettempdir()) / f"detlite-soak-{os.getpid()}.txt"
        printed.unlink(missing_ok=True)
        limit = space if kind == "file limit" else 0
        started = time.monotonic()
        process = Process(args, printed, limit, slow if kind != "none" else 0.0)
        pid = process.pid
        if (kind.startswith("SIG") or kind == "loader killed") and not process.wait(delay):
            with suppress(ProcessLookupError):
                if kind == "loader killed":
                    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                    if children:
                        os.kill(int(rng.choice(children)), signal.SIGKILL)
                else:
                    number = signal.Signals[kind.split()[0]]
                    (os.killpg if to_all else os.kill)(pid, number)
                    if kind.endswith("twice") and not process.wait(again):
                        os.kill(pid, number)
        hangs = not process.wait(300 + 10 * seconds)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # loader processes, which outlive theirs for a while
        process.wait(60)
        ballast.unlink(missing_ok=True)
        status = process.status
        assert status is not None
        row = {"seed": seed, "run": output.name, "trouble": kind, "status": status}
        row |= {"seconds": round(time.monotonic() - started, 2), "delay": round(delay, 3)}
        row |= {"space": space, "to_all": to_all, "slow": slow}
        self._log.write(json.dumps(row) + "\n")
        self._log.flush()
        self.counts["processes"] += 1
        self.statuses.setdefault(kind, Counter())[str(status)] += 1
        text = printed.read_text(errors="replace")[-4000:]
        printed.unlink()
        if hangs or status not in STATUSES[kind]:
            what = "hangs" if hangs else f"ends with status {status}"
            raise Finding(f"{output} {what} after the trouble {row}:\n{text}")
        return status


def main() -> int:
    """0, or 1 after a finding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--rounds", type=int, default=sys.maxsize, help="at most")
    parser.add_argument("--folder", type=Path, default=Path("output/soak"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    soak, seed = Soak(args.folder.resolve()), args.seed
    started = time.monotonic()
    stop, finding = started + 60 * args.minutes, ""
    while not finding and time.monotonic() < stop and seed < args.seed + args.rounds:
        try:
            soak.round(seed, stop)
            seed += 1
        except Finding as error:
            finding = f"{error}\nagain: python tests/soak/soak.py --seed {seed} --rounds 1"
    summary = {
        **soak.counts,
        "minutes": round((time.monotonic() - started) / 60, 1),
        "statuses": {kind: dict(row) for kind, row in sorted(soak.statuses.items())},
        "finding": finding,
    }
    text = json.dumps(summary, indent=2)
    (args.folder / "summary.json").write_text(text + "\n")
    print(text)
    if finding:
        print(finding, file=sys.stderr)
    return bool(finding)


if __name__ == "__main__":
    sys.exit(main())
