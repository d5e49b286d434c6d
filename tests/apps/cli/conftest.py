"""Fixtures: commands, output folders of runs with errors of all types, and a browser."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from detlite.apps.cli.main import main
from detlite.config import load_config
from detlite.evaluation import Results, evaluate_coco
from tests.builders import make_coco
from tests.evaluation.synthetic_detections import synthetic_dataset

ErrorOf = Callable[..., str]


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that runs a command, such as `run_command("predict", "--input", file)`."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def run(command: str, *arguments: object) -> int:
        return main([command, *map(str, arguments)])

    return run


@pytest.fixture
def error_of(run_command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> ErrorOf:
    """`error_of("predict", ...)`: the message of one line of a failing command."""

    def run(command: str, *arguments: object) -> str:
        capsys.readouterr()
        try:
            status = run_command(command, *arguments)
        except SystemExit as exit:  # of argparse
            status = int(exit.code or 0)
        *_, line = capsys.readouterr().err.splitlines()  # others report progress
        assert status == 2
        assert line.startswith(("error: ", f"detlite {command}: error: "))
        return line.partition("error: ")[2]

    return run


MakeRun = Callable[..., Path]


def run_factory(root: Path) -> MakeRun:
    """Create a dataset below `root`, and return a function that creates the output of runs on it.

    `make("first", keep=0.5)` returns an output folder. Options: the fraction of detections to
    `keep`; `masks`: with masks; `trained`: with curves; `keypoints`: all objects and detections
    have three keypoints.
    """
    coco, rows = synthetic_dataset(0, images=16)
    data = root / "data"
    (data / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for image in coco.dataset["images"]:
        pixels = rng.integers(0, 60, (image["height"], image["width"], 3), dtype=np.uint8)
        for row in coco.dataset["annotations"]:
            if row["image_id"] == image["id"]:
                x, y, w, h = (int(side) for side in row["bbox"])
                pixels[y : y + h, x : x + w] += np.uint8(40 * (row["category_id"] % 5))
        Image.fromarray(pixels).save(data / "images" / image["file_name"])
    names = ["cat <b>", "dog & co", "bird"]  # the page must escape them
    for category, name in zip(coco.dataset["categories"], names, strict=True):
        category["name"] = name
    (data / "val.json").write_text(json.dumps(coco.dataset))

    def make(
        name: str, keep: float = 1.0, masks: bool = True, trained: bool = True,
        keypoints: bool = False,
    ) -> Path:  # fmt: skip
        folder = root / name
        folder.mkdir()
        entry = {"name": "val set", "annotations": "val.json", "images": "images"}
        options: list[Any] = [
            "DATASETS.ROOT", str(data), "DATASETS.CATALOG", [entry], "DATASETS.TEST", ("val set",),
            "MODEL.MASK_ON", masks, "MODEL.KEYPOINT_ON", keypoints,
            "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 4, "OUTPUT_DIR", str(folder),
            "SOLVER.IMS_PER_BATCH", 4,
        ]  # fmt: skip
        (folder / "config.yaml").write_text(load_config(None, options).dump())
        kept = rows[: round(keep * len(rows))]
        kinds = ["bbox", "segm"] if masks else ["bbox"]
        if keypoints:
            kinds.append("keypoints")
            _add_keypoints(coco.dataset, kept)
            (data / "val.json").write_text(json.dumps(coco.dataset))
        if not masks:
            kept = [{k: v for k, v in row.items() if k != "segmentation"} for row in kept]
        (folder / "results_val set.json").write_text(json.dumps(kept))
        metrics = evaluate_coco(make_coco(coco.dataset), Results.from_coco(kept, kinds), kinds)
        (folder / "evaluation.json").write_text(json.dumps(metrics))
        if trained:
            lines = [
                {"iteration": n, "loss": 3 / n, "loss_mask": 1 / n, "loss_box": 2 / n}
                for n in range(1, 30)
            ]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        return folder

    return make


def _add_keypoints(content: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    for category in content["categories"]:
        category["keypoints"] = ["head", "middle", "tail"]
    for row in (*content["annotations"], *rows):
        x, y, w, h = row["bbox"]
        points = [(x + fraction * w, y + fraction * h, 2) for fraction in (0.1, 0.5, 0.9)]
        row["keypoints"] = [float(number) for point in points for number in point]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Return a function that creates runs, see `run_factory`."""
    return run_factory(tmp_path)


@pytest.fixture(scope="session")
def make_shared_run(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """Return a function that creates runs for all tests, which must not change them."""
    return run_factory(tmp_path_factory.mktemp("runs"))


SCREENS = [{"width": 1280, "height": 800}, {"width": 375, "height": 800}]  # desktop, phone


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[[Path], Any]]:
    """Return a function that opens a page in an offline browser, on the screen of a phone.

    The test fails if the page logs an error, sends a request, or is wider than one of SCREENS.
    """
    context = chromium.new_context(viewport=SCREENS[0], offline=True, java_script_enabled=True)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda entry: problems.append(f"{entry.type}: {entry.text}"))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda sent: sent.url.startswith(("file:", "data:"))
            or problems.append(f"request of {sent.url}"))  # fmt: skip

    def show(file: Path) -> Any:
        page.goto(file.resolve().as_uri())
        for screen in SCREENS:
            page.set_viewport_size(screen)
            assert page.evaluate("document.documentElement.scrollWidth") <= screen["width"]
        return page

    yield show
    context.close()
    assert problems == []
