"""Test how runs continue after interruptions."""

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from detlite.apps.batch_predict.resumable_run import ResumableRun, Totals, remove_results
from detlite.apps.prediction_files.writer import FORMATS, ModelInfo
from detlite.config import ConfigError

MODEL = ModelInfo([{"id": 7, "name": "cell"}])
COUNT = 10
FORMATS_OF_RESULTS = ["results", "csv", "coco", "geojson", "label-studio"]


def start(folder: Path, format: str = "results", weights: str = "a.pth", **options: Any) -> Any:
    command = {"weights": weights, "format": format}
    return ResumableRun(FORMATS.get(format)(folder, MODEL), command, **options)


class KilledError(Exception):
    """Simulates the end of a process."""


def entry(image_id: int) -> dict[str, Any]:
    """Return the entry of an image with one object, or of an unreadable image."""
    image: dict[str, Any] = {"id": image_id, "file_name": f"{image_id}.jpg"}
    if image_id % 4 == 0:
        return {"image": image, "problem": "damaged"}
    image |= {"height": 8, "width": 9, "copy": f"{image_id:04d}.jpg"}
    row = {"image_id": image_id, "category_id": 7, "score": 1.0, "bbox": [0.0, 1.0, 2.0, 3.0]}
    return {"image": image, "objects": [row]}


def work(run: ResumableRun, limit: int = COUNT) -> list[int]:
    """Add the images that are left, up to `limit`, and return their ids."""
    if run.is_done:
        return []
    ids = list(range(run.finished + 1, COUNT + 1))[:limit]
    with closing(run):
        for image_id in ids:
            run.add(entry(image_id))
        if run.finished < COUNT:
            raise KilledError
        run.finish()
    return ids


def content(folder: Path) -> dict[str, Any]:
    return {file.name: file.read_bytes() for file in folder.rglob("*.*")}


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with complete runs, one for each format."""
    folder = tmp_path_factory.mktemp("whole")
    for format in FORMATS_OF_RESULTS:
        assert work(start(folder / format, format)) == list(range(1, COUNT + 1))
    return folder


def test_files_of_a_complete_run(whole_runs):
    folder = whole_runs / "results"
    run = start(folder)
    assert (run.is_done, run.totals) == (True, Totals(images=8, unreadable=2, objects=8))
    lines = map(json.loads, (folder / "progress.jsonl").read_text().splitlines())
    numbers = {line["image"]["id"]: line["objects"] for line in lines}
    assert numbers == {n: 0 if n % 4 == 0 else 1 for n in range(1, COUNT + 1)}
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("format", FORMATS_OF_RESULTS)
@pytest.mark.parametrize("limit", [0, 1, 4, 9])
@pytest.mark.parametrize("torn", [b"", b'{"image": {"id"', b"\0\0\0\n", b'{"image": 5}\n'])
def test_a_killed_run_continues_without_losses(tmp_path, whole_runs, format, limit, torn):
    """A process can end at any moment, also while it writes a row or a line."""
    out = tmp_path / format
    with pytest.raises(KilledError):
        work(start(out, format), limit)
    for part in out.glob("*.part"):
        assert (whole_runs / format / part.stem).read_bytes().startswith(part.read_bytes())
    for file in (out / "progress.jsonl", *out.glob("*.part")):
        with file.open("ab") as stream:
            stream.write(torn)
    assert work(start(out, format)) == list(range(limit + 1, COUNT + 1))
    assert content(out) == content(whole_runs / format)


def test_lines_without_their_rows_do_not_count(tmp_path, whole_runs):
    """A power failure can keep the progress, and lose rows that were written before it."""
    with pytest.raises(KilledError):
        work(start(tmp_path, "csv"), 7)
    part = tmp_path / "summary.csv.part"
    os.truncate(part, part.stat().st_size - 1)
    assert work(start(tmp_path, "csv")) == [7, 8, 9, 10]
    assert content(tmp_path) == content(whole_runs / "csv")


def test_deleted_results_and_runs_with_videos_start_from_scratch(tmp_path):
    with pytest.raises(KilledError):
        work(start(tmp_path), 6)
    assert work(start(tmp_path, continues=False)) == list(range(1, COUNT + 1))
    before = (tmp_path / "results.json").read_bytes()
    (tmp_path / "results.json").unlink()
    assert work(start(tmp_path)) == list(range(1, COUNT + 1))
    assert (tmp_path / "results.json").read_bytes() == before


@pytest.mark.parametrize("calls", range(3))
def test_killed_while_completing(tmp_path, monkeypatch, calls):
    """The run ends before one of its three files has its name: two of results, and the manifest."""
    run, real, left = start(tmp_path), os.replace, [None] * calls

    def kill(*names: Any) -> None:
        if not left:
            raise KilledError
        left.pop()
        real(*names)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", kill)
        with pytest.raises(KilledError):
            work(run)
    run = start(tmp_path)
    assert work(run) == []
    assert run.totals == Totals(8, 2, 8)
    assert len(json.loads((tmp_path / "results.json").read_text())) == 8


@pytest.mark.parametrize(
    ("name", "text", "format"),
    [
        ("images.json", "{}", "results"), ("annotations.json", "x", "csv"), ("images", "x", "yolo"),
        ("manifest.json", "[1]", "csv"), ("manifest.json", "x", "csv"),
        ("manifest.json", '{"command": {}, "done": {"a": 1}}', "csv"),
    ],
)  # fmt: skip
def test_other_results_are_kept(tmp_path, name, text, format):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=rf"{name} exists.*--overwrite"):
        start(tmp_path, format)
    assert (tmp_path / name).read_text() == text


def test_removing_results_keeps_files_of_the_user(tmp_path):
    """Copies of images are removed, and no others."""
    files = [tmp_path / "geojson/notes.txt", tmp_path / "images/0099.jpg"]
    with pytest.raises(KilledError):
        work(start(tmp_path, "coco"), 2)
    for file in (*files, tmp_path / "images/0001.jpg", tmp_path / "labels/0002.txt"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    remove_results(tmp_path)
    assert sorted(file for file in tmp_path.rglob("*") if file.is_file()) == files


def test_links_and_fifos_are_refused(tmp_path):
    """Opening a FIFO would block for ever."""
    (tmp_path / "other").write_text("untouched")
    (tmp_path / "progress.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic link"):
        work(start(tmp_path))
    (tmp_path / "progress.jsonl").unlink()
    os.mkfifo(tmp_path / "progress.jsonl")
    with pytest.raises(OSError, match="not a regular file"):
        work(start(tmp_path))
    assert (tmp_path / "other").read_text() == "untouched"
