"""Interrupt training runs at random for some time, and compare their results.

    python tests/soak/soak.py --minutes 60 --seed 0 --folder output/soak

Each round draws settings of a small Mask R-CNN from its seed. It trains the model once without
interruption, and then a few times with faults (signals, killed loader processes, failed writes),
resuming until the run is complete. Weights, optimizer, random number generators, metrics and
results must equal those of the uninterrupted run bit for bit, and every process must end with an
expected status.

The program prints a line for each process, and counts them at the end. At the first failure it ends
with status 1, prints the seed of the round, and keeps the folder. A seed always draws the same
settings and faults, but the moment of a fault depends on the machine's speed.

The processes are forked from this one, which has already imported everything. RLIMIT_FSIZE limits
the size of files, which makes writes fail as on a full disk.
"""

import argparse
import atexit
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import matplotlib.pyplot as plt  # noqa: F401  imported once, before the forks
import torch
import torch.utils.tensorboard

from detlite.apps.cli.main import run_command
from tests.builders import write_shapes_config
from tests.soak.compare import first_difference

RUNS = 3  # interrupted runs per round
MAX_FAULTS = 6  # interrupted processes per run
SETTINGS: dict[str, list[Any]] = {
    "DATALOADER.NUM_WORKERS": [0, 1, 1, 2],
    "DTYPE": ["float32", "bfloat16", "float16"],
    "SOLVER.MAX_ITER": [8, 12, 16],
    "SOLVER.OPTIMIZER": ["SGD", "AdamW"],
    "SOLVER.LR_SCHEDULE": ["multistep", "cosine"],
    "SOLVER.ACCUMULATION_STEPS": [1, 2],
    "SOLVER.CLIP_GRAD_NORM": [0.0, 1.0],
    "SOLVER.EMA_DECAY": [0.0, 0.9],
    "SOLVER.CHECKPOINT_PERIOD": [1, 3, 5],
    "SOLVER.CHECKPOINTS_KEPT": [0, 1, 2],
    "SOLVER.TEST_PERIOD": [0, 4],
    "SOLVER.BEST_METRIC": ["", "bbox/AP"],
}
# Fault -> expected statuses of the process; 0 if the fault came too late.
STATUSES = {
    "none": {0},
    "SIGKILL": {0, -signal.SIGKILL},
    "SIGTERM": {0, 75, -signal.SIGTERM},
    "SIGHUP": {0, 75, -signal.SIGHUP},
    "SIGINT": {0, 130, -signal.SIGINT},
    "SIGTERM twice": {0, 75, -signal.SIGTERM},
    "loader killed": {0, 2},
    "file limit": {0, 2},
}


def train_and_exit(args: list[str], output: Path, limit: int) -> NoReturn:
    """Run the command in a forked process, in its own process group, and exit.

    Args:
        args: arguments of `detlite train`.
        output: file for stdout and stderr.
        limit: maximum size of a file in bytes; 0 for none.
    """
    os.setpgid(0, 0)
    # nohup, and a shell for its background jobs, may have set signals to be ignored.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with output.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    status = 1
    try:
        status = run_command("train", args)
    except KeyboardInterrupt:  # before or after the command handles it
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:  # what an interpreter does at its end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)


class Process:
    """A forked process that runs `train_and_exit`."""

    def __init__(self, *args: Any) -> None:
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            train_and_exit(*args)
        with suppress(OSError):  # the child may have done it
            os.setpgid(self.pid, self.pid)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process; return False if it still runs."""
        end = time.monotonic() + seconds
        while self.status is None and time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.01)
        return self.status is not None


class SoakError(Exception):
    """A wrong result or an unexpected status."""


class Soak:
    """Run rounds in a folder and log their processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._config = write_shapes_config(folder / "config.yaml", folder / "data")
        self.counts = Counter[str]()

    def round(self, seed: int, stop: float) -> None:
        """Do the runs of a seed; start none after `stop` (in the time of time.monotonic).

        Raises:
            SoakError: a result differs, or the status of a process is unexpected.
        """
        rng = random.Random(seed)
        settings = {key: rng.choice(values) for key, values in SETTINGS.items()}
        settings |= {"SEED": seed, "INPUT.MIN_SIZE_TRAIN": (64, 96)}
        runs = self._folder / "runs"
        shutil.rmtree(runs, ignore_errors=True)
        runs.mkdir()
        started = time.monotonic()
        self._process(seed, runs / "uninterrupted", settings, "none", rng, 0.0)
        seconds = time.monotonic() - started
        for number in range(RUNS):
            if number and time.monotonic() > stop:
                return
            interrupted = runs / f"interrupted{number}"
            is_complete, processes = False, 0
            while not is_complete:
                faults = [fault for fault in STATUSES if fault != "none"]
                if not settings["DATALOADER.NUM_WORKERS"]:
                    faults.remove("loader killed")
                fault = rng.choice(faults) if processes < MAX_FAULTS else "none"
                status = self._process(seed, interrupted, settings, fault, rng, seconds)
                is_complete = status == 0
                processes += 1
            if place := first_difference(runs / "uninterrupted", interrupted):
                raise SoakError(f"{interrupted} differs from the uninterrupted run: {place}")
            shutil.rmtree(interrupted)
            self.counts["interrupted runs"] += 1
            self.counts["interruptions"] += processes - 1
        self.counts["rounds"] += 1

    def _process(
        self, seed: int, output: Path, settings: dict[str, Any], fault: str, rng: random.Random,
        seconds: float,
    ) -> int:  # fmt: skip
        """Run one process with a fault; return its status."""
        args = ["--config", str(self._config), "--resume", "OUTPUT_DIR", str(output)]
        args += [str(part) for pair in settings.items() for part in pair]
        delay = rng.uniform(0, 1.1 * seconds)
        # Free bytes, from a line of the log to more than a checkpoint.
        space = int(math.exp(rng.uniform(math.log(500), math.log(4e6))))
        to_all, again = rng.random() < 0.5, rng.uniform(0, 0.3)
        output_file = self._folder / "output.txt"
        output_file.unlink(missing_ok=True)
        process = Process(args, output_file, space if fault == "file limit" else 0)
        pid = process.pid
        if (fault.startswith("SIG") or fault == "loader killed") and not process.wait(delay):
            with suppress(ProcessLookupError):
                if fault == "loader killed":
                    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                    if children:
                        os.kill(int(rng.choice(children)), signal.SIGKILL)
                else:
                    number = signal.Signals[fault.split()[0]]
                    (os.killpg if to_all else os.kill)(pid, number)
                    if fault.endswith("twice") and not process.wait(again):
                        os.kill(pid, number)
        hangs = not process.wait(300 + 10 * seconds)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # loader processes end later
        process.wait(60)
        status = process.status
        assert status is not None
        row = {"seed": seed, "run": output.name, "fault": fault, "status": status, "delay": delay,
               "space": space, "to_all": to_all}  # fmt: skip
        print(json.dumps(row), flush=True)
        self.counts["processes"] += 1
        self.counts[f"{fault}: {status}"] += 1
        text = output_file.read_text(errors="replace")[-4000:]
        if hangs or status not in STATUSES[fault]:
            end = "hangs" if hangs else f"ends with status {status}"
            raise SoakError(f"{output} {end} after the fault {row}:\n{text}")
        return status


def main() -> int:
    """Run the command line; return 1 after a failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first round")
    parser.add_argument("--rounds", type=int, default=sys.maxsize, help="maximum number of rounds")
    parser.add_argument("--folder", type=Path, default=Path("output/soak"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    soak, seed = Soak(args.folder.resolve()), args.seed
    stop = time.monotonic() + 60 * args.minutes
    while time.monotonic() < stop and seed < args.seed + args.rounds:
        try:
            soak.round(seed, stop)
        except SoakError as error:
            print(f"{error}\nrepeat with: python tests/soak/soak.py --seed {seed} --rounds 1")
            return 1
        seed += 1
    print(json.dumps(soak.counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
