"""tools/predict.py, from its command line to its files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools.coco import COCO
from yacs.config import CfgNode

from detlite import build_model, load_checkpoint
from detlite.engine.checkpoint import Checkpoint, save_checkpoint
from detlite.inference import inputs

Run = Callable[..., int]


@pytest.fixture
def run(run_tool: Run) -> Run:
    """Runs the program with the given arguments; returns its exit status."""
    return partial(run_tool, "predict.py")


@pytest.fixture
def weights(tiny_config: Callable[..., CfgNode], tmp_path: Path) -> Path:
    """The checkpoint of an untrained model that finds something everywhere."""
    return write_weights(tiny_config, tmp_path / "model.pth")


def write_weights(tiny_config: Callable[..., CfgNode], path: Path, *opts: Any) -> Path:
    cfg = tiny_config("INPUT.MIN_SIZE_TEST", 64, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0, *opts)
    names = {"keypoints": ["head", "tail"]} if cfg.MODEL.KEYPOINT_ON else {}
    categories = [{"id": 10 * k, "name": f"kind {k}", **names} for k in (1, 2, 3)]
    save_checkpoint(Checkpoint(path, build_model(cfg).state_dict(), categories, cfg.dump()))
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of two pictures and a text file."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, height in (("b.jpg", 50), ("a.png", 70)):
        pixels = rng.integers(0, 256, (height, 90, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    (folder / "notes.txt").write_text("not a picture")
    return folder


def test_files(run: Run, weights: Path, photos: Path, tmp_path: Path) -> None:
    """The same picture twice keeps two files, and the json files load as COCO's."""
    out = tmp_path / "new" / "out"
    inputs = ("--input", photos, photos / "a.png")
    assert run("--weights", weights, *inputs, "--output", out, "--threshold", "0") == 0
    drawn = [out / name for name in ("0001_a.png", "0002_b.png", "0003_a.png")]
    assert sorted(out.glob("*.png")) == drawn
    assert drawn[0].read_bytes() == drawn[2].read_bytes()
    coco = COCO(out / "images.json")
    assert [coco.imgs[i]["file_name"] for i in (1, 2)] == [
        str(photos / "a.png"),
        str(photos / "b.jpg"),
    ]
    assert (coco.imgs[2]["height"], coco.imgs[2]["width"]) == (50, 90)
    found = coco.loadRes(str(out / "results.json"))
    assert {found.anns[k]["image_id"] for k in found.anns} == {1, 2, 3}
    assert {found.anns[k]["category_id"] for k in found.anns} <= {10, 20, 30}
    assert found.annToMask(found.anns[1]).shape == (70, 90)


def test_threshold_and_overrides(run: Run, weights: Path, photos: Path, tmp_path: Path) -> None:
    arguments = ("--weights", weights, "--input", photos, "--output", tmp_path)
    found = []
    for more in (("0",), ("1.1",), ("0", "MODEL.ROI_HEADS.SCORE_THRESH", "1.0")):
        assert run(*arguments, "--threshold", *more) == 0
        found.append(len(json.loads((tmp_path / "results.json").read_text())))
    assert found[0] > 0
    assert found[1:] == [0, 0]


KEYPOINTS = [
    "MODEL.KEYPOINT_ON", True, "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", False,
    "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 2, "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION", 56,
    "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", (8,),
]  # fmt: skip


@pytest.mark.parametrize(("convention", "center"), [("detlite", 0.5), ("torchvision", 0.0)])
def test_keypoints_are_indices_of_pixels(
    run: Run, tiny_config: Callable[..., CfgNode], photos: Path, tmp_path: Path, convention: str,
    center: float,
) -> None:  # fmt: skip
    keys = [*KEYPOINTS, "MODEL.CONVENTION", convention]
    weights = write_weights(tiny_config, tmp_path / "points.pth", *keys)
    out = tmp_path / "out"
    arguments = ("--weights", weights, "--input", photos / "a.png", "--output", out)
    assert run(*arguments, "--threshold", "0") == 0
    results = json.loads((out / "results.json").read_text())
    found = load_checkpoint(weights)(photos / "a.png")["keypoints"]
    assert len(results) == len(found) > 0
    wanted = found - torch.tensor([center, center, 0])
    torch.testing.assert_close(
        torch.tensor([result["keypoints"] for result in results]), wanted.flatten(1)
    )


def test_unreadable_pictures_are_named_and_skipped(
    run: Run, weights: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "a.png").write_bytes((photos / "a.png").read_bytes()[:500])
    inputs = (photos, tmp_path / "missing.png")
    assert run("--weights", weights, "--input", *inputs, "--output", tmp_path) == 1
    output = capsys.readouterr()
    assert f"skipped: {photos / 'a.png'}: " in output.err
    assert f"skipped: {tmp_path / 'missing.png'}: no such picture file" in output.err
    assert "1 pictures done, 2 unreadable" in output.out
    images = json.loads((tmp_path / "images.json").read_text())["images"]
    assert [(image["id"], Path(image["file_name"]).name) for image in images] == [(2, "b.jpg")]


def test_errors_are_one_line(
    run: Run, weights: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for file, folder, opts, message in (
        (tmp_path / "no.pth", photos, (), "no.pth: cannot be read"),
        (weights, tmp_path / "empty", (), "empty: there is no picture in this folder"),
        (weights, photos, ("INPUT.MIN_SIZE", "3"), "unknown config key INPUT.MIN_SIZE"),
    ):
        arguments = ("--weights", file, "--input", folder, "--output", tmp_path, *opts)
        assert run(*arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert message in error
        assert error.count("\n") == 1


def test_output_that_is_a_file_is_one_line_and_status_2(
    run: Run, weights: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").touch()
    assert run("--weights", weights, "--input", photos, "--output", tmp_path / "taken") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --output {tmp_path / 'taken'}: cannot be written to")
    assert error.count("\n") == 1


def test_a_model_that_needs_proposals_is_refused(
    run: Run, tiny_config: Callable[..., CfgNode], photos: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    weights = write_weights(tiny_config, tmp_path / "fast.pth", "MODEL.LOAD_PROPOSALS", True)
    assert run("--weights", weights, "--input", photos, "--output", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {weights}: a Fast R-CNN needs proposals")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_list_and_a_pattern(
    run: Run, weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids follow the order of the inputs."""
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text("photos/b.jpg\nhttps://host/x.jpg\n")
    monkeypatch.setattr(inputs, "fetch", lambda address, file: shutil.copy(photos / "a.png", file))
    assert run("--weights", weights, "--input", "list.txt", "ph*/*.png", "--output", "out") == 0
    images = json.loads(Path("out/images.json").read_text())["images"]
    assert [(image["id"], image["file_name"], image["height"]) for image in images] == [
        (1, "photos/b.jpg", 50), (2, "https://host/x.jpg", 70), (3, "photos/a.png", 70),
    ]  # fmt: skip
    found = json.loads(Path("out/results.json").read_text())
    scores = {n: [row["score"] for row in found if row["image_id"] == n] for n in (2, 3)}
    assert scores[2] == scores[3]
