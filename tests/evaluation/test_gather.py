"""Results put together: of images, and of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from detlite.evaluation import Results, coco_results
from detlite.evaluation.gather import ResultsCollector, gather_results
from detlite.structures.masks.formats import encode_bitmap


def image_results(image_id: int, count: int, **options: bool) -> Results:
    """Detections of one image; `masks` and `keypoints` say whether there are any."""
    boxes = torch.arange(4.0).repeat(count, 1) + image_id
    scores = torch.arange(count) / 8
    masks = [encode_bitmap(np.eye(3 + n)) for n in range(count)] if options.get("masks") else None
    points = torch.rand(count, 5, 3) if options.get("keypoints") else None
    return coco_results(image_id, boxes, scores, [2] * count, masks, points)


@pytest.mark.parametrize("options", [{}, {"masks": True}, {"masks": True, "keypoints": True}])
def test_images_follow_each_other(options: dict[str, bool]) -> None:
    parts = [image_results(n, count, **options) for n, count in enumerate((2, 0, 3))]
    collector = ResultsCollector()
    for part in parts:
        collector.add(part)
    collected = collector.collected()
    assert list(collected.to_coco()) == [row for part in parts for row in part.rows()]
    assert collected.scores.dtype == np.float32
    assert gather_results(collected) is collected


@pytest.mark.parametrize("options", [{}, {"masks": True, "keypoints": True}])
def test_nothing_found(options: dict[str, bool]) -> None:
    collector = ResultsCollector()
    assert len(collector.collected()) == 0
    collector.add(image_results(1, 0, **options))
    assert len(collector.collected()) == 0
    assert (collector.collected().masks is not None) == bool(options)


PROCESSES = """
    import json, sys
    sys.path.insert(0, {folder!r})
    from test_gathering import image_results
    from detlite.distributed import process_group, rank
    from detlite.evaluation.gather import ResultsCollector, gather_results

    with process_group("cpu"):
        for counts in {counts!r}:
            collector = ResultsCollector()
            for image, count in counts[rank()]:
                collector.add(image_results(image, count, masks=True))
            gathered = gather_results(collector.collected())
            if rank():
                assert gathered is None
            else:
                print(json.dumps(list(gathered.to_coco())))
"""


def test_three_processes(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """Rank 0 gets all results by rank; a process may have no detection, or no image."""
    counts = [
        [[(0, 2), (3, 1)], [(1, 3)], [(2, 1)]],
        [[], [(1, 2)], [(2, 0)]],
        [[(0, 0)], [], []],
    ]
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(PROCESSES.format(folder=str(Path(__file__).parent), counts=counts))
    )
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env={**env, "WORLD_SIZE": "3", "RANK": str(number), "LOCAL_RANK": str(number)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    lines = [process.communicate(timeout=240)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert [json.loads(line) for line in lines[0]] == [
        [
            row
            for images in one
            for image, count in images
            for row in image_results(image, count, masks=True).to_coco()
        ]
        for one in counts
    ]
