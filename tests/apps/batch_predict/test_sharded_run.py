"""Test how runs over many images continue after interruptions, and how processes share them."""

import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from detlite.apps.batch_predict.sharded_run import ShardedRun, Totals, open_run
from detlite.config import ConfigError

CATEGORIES = [{"id": 7, "name": "cell"}]


def start(
    folder: Path, count: int = 10, format: str = "coco", weights: str = "model.pth",
    shard_size: int | None = 3, **options: Any,
) -> ShardedRun:  # fmt: skip
    """Start or continue a run over `count` images."""
    command = {"weights": weights, "threshold": 0.5}
    images = [f"{number}.jpg" for number in range(count)]
    return open_run(folder, command, images, format, CATEGORIES, shard_size, **options)


class KilledError(Exception):
    """Simulates the end of a process."""


def work(run: ShardedRun, rank: int = 0, world_size: int = 1, limit: int = 10**6) -> list[int]:
    """Process up to `limit` images, and return their ids.

    Each image has one object, except that ids divisible by 4 are unreadable.
    """
    ids: list[int] = []
    for shard in run.unfinished_shards(rank, world_size):
        with run.journal(shard) as journal:
            for index in run.indices(shard)[journal.count :]:
                if len(ids) == limit:
                    raise KilledError
                image_id = index + 1
                image: dict[str, Any] = {"id": image_id, "file_name": run.images[index]}
                if image_id % 4 == 0:
                    journal.add({"image": image, "problem": "damaged"})
                else:
                    image |= {"height": 8, "width": 9}
                    obj = {"image_id": image_id, "category_id": 7, "score": 1.0,
                           "bbox": [0.0, 1.0, 2.0, 3.0]}  # fmt: skip
                    journal.add({"image": image, "objects": [obj]})
                ids.append(image_id)
        run.finish(shard)
    return ids


def test_complete_run_has_one_coco_file(tmp_path):
    run = start(tmp_path)
    assert [list(run.indices(shard)) for shard in range(run.shard_count)] == [
        [0, 1, 2], [3, 4, 5], [6, 7, 8], [9],
    ]  # fmt: skip
    assert run.complete() is None
    assert work(run) == list(range(1, 11))
    assert run.finished_images() == 10
    assert run.complete() == Totals(images=8, unreadable=2, objects=8)
    readable = [1, 2, 3, 5, 6, 7, 9, 10]
    results = json.loads((tmp_path / "results.json").read_text())
    assert [row["image_id"] for row in results] == readable
    images = json.loads((tmp_path / "images.json").read_text())
    assert [(image["id"], image["file_name"]) for image in images["images"]] == [
        (image_id, f"{image_id - 1}.jpg") for image_id in readable
    ]
    assert images["categories"] == CATEGORIES
    summary = json.loads((tmp_path / "shards" / "000001.json").read_text())
    assert summary["unreadable"] == [{"id": 4, "file_name": "3.jpg", "problem": "damaged"}]
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["done"] == {"images": 8, "unreadable": 2, "objects": 8}
    assert {path.name for path in tmp_path.iterdir()} == {
        "manifest.json", "shards", "results.json", "images.json",
    }  # fmt: skip


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """Return the folder of a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    run = start(folder)
    assert work(run) == list(range(1, 11))
    run.complete()
    assert work(start(folder)) == []
    return folder


@pytest.mark.parametrize("limit", range(10))
@pytest.mark.parametrize("torn", [b"", b'{"image": {"id"', b"\0\0\0\n"])
def test_killed_run_continues_without_losses(tmp_path, whole_run, limit, torn):
    """A process can end at any moment, also while it writes a line."""
    with pytest.raises(KilledError):
        work(start(tmp_path), limit=limit)
    for journal in (tmp_path / "shards").glob("*.journal"):
        if not journal.with_suffix(".json").exists():
            with journal.open("ab") as stream:
                stream.write(torn)
    run = start(tmp_path, shard_size=None)
    assert work(run) == list(range(limit + 1, 11))
    run.complete()
    assert work(start(tmp_path)) == []
    for name in ("results.json", "images.json"):
        assert (whole_run / name).read_bytes() == (tmp_path / name).read_bytes()


def test_deleted_results_are_computed_again(tmp_path):
    run = start(tmp_path)
    work(run)
    run.complete()
    before = (tmp_path / "results.json").read_bytes()
    (tmp_path / "results.json").unlink()
    assert work(start(tmp_path)) == list(range(1, 11))
    run.complete()
    assert (tmp_path / "results.json").read_bytes() == before


@pytest.mark.parametrize(
    ("step", "calls"),
    [
        ("result_files._write_list", 1),  # images.json
        ("result_files._write_list", 2),  # results.json
        ("sharded_run._write_json", 1),
    ],
)
def test_killed_while_joining_shards(tmp_path, monkeypatch, step, calls):
    run = start(tmp_path)
    work(run)
    module, _, name = step.partition(".")
    function, count = getattr(sys.modules[f"detlite.apps.batch_predict.{module}"], name), 0

    def kill(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == calls:
            raise KilledError
        function(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(f"detlite.apps.batch_predict.{step}", kill)
        with pytest.raises(KilledError):
            run.complete()
    assert [file.name for file in tmp_path.glob("results*")] == ["results.json"] * (
        module == "sharded_run"
    )
    run = start(tmp_path)
    assert work(run) == []
    assert run.complete() == Totals(8, 2, 8)
    assert len(json.loads((tmp_path / "results.json").read_text())) == 8


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_concurrent_processes_share_the_shards(tmp_path, world_size):
    """Threads simulate processes, because file locks also separate file descriptors."""
    ids: list[int] = []
    barrier = threading.Barrier(world_size)

    def process(rank: int) -> None:
        run = start(tmp_path, 40, shard_size=2, world_size=world_size)
        barrier.wait()
        ids.extend(work(run, rank, world_size))
        run.complete()

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(ids) == Counter(range(1, 41))
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [row["image_id"] for row in rows] == [n for n in range(1, 41) if n % 4]
    assert not list((tmp_path / "shards").glob("0*.lock"))


def test_other_ranks_finish_the_shards_of_a_lost_one(tmp_path):
    run = start(tmp_path, world_size=2)
    with pytest.raises(KilledError):
        work(run, rank=1, world_size=2, limit=2)  # rank 1 owns shards 1 and 3
    assert work(run, rank=0, world_size=2) == [1, 2, 3, 7, 8, 9, 6, 10]
    assert run.complete() == Totals(8, 2, 8)


def test_locked_shard_is_skipped(tmp_path):
    run = start(tmp_path)
    other = start(tmp_path).unfinished_shards()
    assert next(other) == 0
    assert work(run) == list(range(4, 11))
    assert run.complete() is None
    other.close()  # type: ignore[attr-defined]
    assert work(run) == [1, 2, 3]


def test_default_shard_size(tmp_path):
    assert start(tmp_path / "alone", 5000, shard_size=None).shard_size == 1000
    assert start(tmp_path / "two", 5000, shard_size=None, world_size=2).shard_size == 313
    assert start(tmp_path / "few", 3, shard_size=None, world_size=2).shard_size == 1
    assert start(tmp_path / "two", 5000, shard_size=None).shard_size == 313  # continues with it


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": "new.pth"}, "a run with other weights: model.pth, not new.pth. Choose"),
        ({"count": 11}, r"a run with other images: 10 \(SHA-256 .*\), not 11 \("),
        ({"format": "csv"}, "a run with other format: coco, not csv"),
        ({"shard_size": 4}, "a run with other shard size: 3, not 4"),
    ],
)
def test_another_command_is_refused(tmp_path, changes, message):
    work(start(tmp_path))
    with pytest.raises(ConfigError, match=message) as caught:
        start(tmp_path, **changes)
    assert "--overwrite" in str(caught.value)
    run = start(tmp_path, **changes, overwrite=True)
    assert len(work(run)) == changes.get("count", 10)
    assert run.complete() is not None


def test_other_results_are_kept(tmp_path):
    for name, content in (("images.json", "{}"), ("manifest.json", "[1]"), ("manifest.json", "x")):
        file = tmp_path / name
        file.write_text(content)
        with pytest.raises(ConfigError, match=rf"{name}.*--overwrite"):
            start(tmp_path)
        assert file.read_text() == content
        file.unlink()


@pytest.mark.parametrize("name", ["000000.journal", "000000.lock", ".lock"])
def test_links_in_the_folder_are_not_followed(tmp_path, name):
    other = tmp_path / "other"
    other.write_text("untouched")
    (tmp_path / "out" / "shards").mkdir(parents=True)
    (tmp_path / "out" / "shards" / name).symlink_to(other)
    with pytest.raises(OSError, match="symbolic link"):
        work(start(tmp_path / "out"))
    assert other.read_text() == "untouched"


@pytest.mark.parametrize("name", ["shards/000000.journal", "manifest.json"])
def test_fifos_in_the_folder_are_refused(tmp_path, name):
    """Opening them would block for ever."""
    (tmp_path / "shards").mkdir()
    os.mkfifo(tmp_path / name)
    with pytest.raises((OSError, ConfigError), match=r"not (a regular|the manifest)"):
        work(start(tmp_path))


@pytest.mark.parametrize("format", ["coco", "csv"])
def test_files_of_the_user_are_kept(tmp_path, format):
    files = [tmp_path / "detections" / "notes.txt", tmp_path / "shards" / "2024.tar"]
    (tmp_path / "shards" / "7").mkdir(parents=True)
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    for overwrite in (False, True):
        run = start(tmp_path, format=format, overwrite=overwrite)
        assert len(work(run)) == 10
        run.complete()
        assert all(file.read_text() == "mine" for file in files)
        assert list((tmp_path / "detections").iterdir()) == files[:1]
