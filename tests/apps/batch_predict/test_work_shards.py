"""Runs over many pictures: what is left of them after any kind of end, and who does what."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from detlite.apps.batch_predict.journal import open_journal, read_journal
from detlite.apps.batch_predict.manifest import open_run
from detlite.apps.batch_predict.work_shards import Run, Totals
from detlite.config import ConfigError

CATEGORIES = [{"id": 7, "name": "cell"}]


def names(count: int) -> list[str]:
    return [f"{number}.jpg" for number in range(count)]


def begin(folder: Path, count: int = 10, form: str = "coco", **more: Any) -> Run:
    more = {"size": 3, **more}
    command = {"weights": more.pop("weights", "model.pth"), "threshold": 0.5}
    return open_run(folder, command, names(count), form, CATEGORIES, **more)


class KilledError(Exception):
    """Stands for the end of a process."""


def work(run: Run, rank: int = 0, world_size: int = 1, most: int = 10**6) -> list[int]:
    """Notes an object in each picture but those of an id that 4 divides, which are unreadable."""
    done: list[int] = []
    for shard in run.shards(rank, world_size):
        with run.journal(shard) as journal:
            for place in run.places(shard)[journal.done :]:
                if len(done) == most:
                    raise KilledError
                image_id = place + 1
                image: dict[str, Any] = {"id": image_id, "file_name": run.pictures[place]}
                if image_id % 4 == 0:
                    journal.add(json.dumps({"image": image, "problem": "damaged"}))
                else:
                    image |= {"height": 8, "width": 9}
                    found = {"image_id": image_id, "category_id": 7, "score": 1.0,
                             "bbox": [0.0, 1.0, 2.0, 3.0]}  # fmt: skip
                    journal.add(json.dumps({"image": image, "objects": [found]}))
                done.append(image_id)
        run.finish(shard)
    return done


def test_a_run_is_one_coco_file_in_the_end(tmp_path: Path) -> None:
    run = begin(tmp_path)
    assert [list(run.places(shard)) for shard in range(run.count)] == [
        [0, 1, 2], [3, 4, 5], [6, 7, 8], [9],
    ]  # fmt: skip
    assert run.complete() is None
    assert work(run) == list(range(1, 11))
    assert run.done() == 10
    assert run.complete() == Totals(pictures=8, unreadable=2, objects=8)
    readable = [1, 2, 3, 5, 6, 7, 9, 10]
    results = json.loads((tmp_path / "results.json").read_text())
    assert [row["image_id"] for row in results] == readable
    images = json.loads((tmp_path / "images.json").read_text())
    assert [(image["id"], image["file_name"]) for image in images["images"]] == [
        (image_id, f"{image_id - 1}.jpg") for image_id in readable
    ]
    assert images["categories"] == CATEGORIES
    note = json.loads((tmp_path / "shards" / "000001.json").read_text())
    assert note["unreadable"] == [{"id": 4, "file_name": "3.jpg", "problem": "damaged"}]
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["done"] == {"pictures": 8, "unreadable": 2, "objects": 8}
    assert {path.name for path in tmp_path.iterdir()} == {
        "manifest.json", "shards", "results.json", "images.json",
    }  # fmt: skip


@pytest.mark.parametrize("most", range(11))
@pytest.mark.parametrize("torn", [b"", b'{"image": {"id"', b"\0\0\0\n"])
def test_nothing_twice_and_nothing_lost(tmp_path: Path, most: int, torn: bytes) -> None:
    """A process ends at any moment, perhaps within a line."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        run = begin(folder)
        done = []
        if folder == broken and most < 10:
            with pytest.raises(KilledError):
                work(run, most=most)
            for journal in (folder / "shards").glob("*.journal"):
                with journal.open("ab") as stream:
                    stream.write(torn)
            run = begin(folder, size=None)
            done = list(range(1, most + 1))
        assert done + work(run) == list(range(1, 11))
        run.complete()
        assert work(begin(folder)) == []
    for name in ("results.json", "images.json"):
        assert (whole / name).read_bytes() == (broken / name).read_bytes()


def test_what_is_gone_from_the_result_is_done_again(tmp_path: Path) -> None:
    run = begin(tmp_path)
    work(run)
    run.complete()
    before = (tmp_path / "results.json").read_bytes()
    (tmp_path / "results.json").unlink()
    assert work(begin(tmp_path)) == list(range(1, 11))
    run.complete()
    assert (tmp_path / "results.json").read_bytes() == before


@pytest.mark.parametrize("step", ["write_images", "join"])
def test_an_end_while_shards_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    run = begin(tmp_path)
    work(run)

    def dies(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(f"detlite.apps.batch_predict.work_shards.{step}", dies)
        with pytest.raises(KilledError):
            run.complete()
    run = begin(tmp_path)
    assert work(run) == []
    assert run.complete() == Totals(8, 2, 8)
    assert len(json.loads((tmp_path / "results.json").read_text())) == 8


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_processes_at_once_share_the_shards(tmp_path: Path, world_size: int) -> None:
    """Locks hold between descriptors, so threads stand for processes."""
    done: list[int] = []
    start = threading.Barrier(world_size)

    def process(rank: int) -> None:
        run = begin(tmp_path, 40, size=2, world_size=world_size)
        start.wait()
        done.extend(work(run, rank, world_size))
        run.complete()

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(done) == Counter(range(1, 41))
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [row["image_id"] for row in rows] == [n for n in range(1, 41) if n % 4]
    assert not list((tmp_path / "shards").glob("0*.lock"))


def test_a_lost_rank_stops_nobody(tmp_path: Path) -> None:
    run = begin(tmp_path, world_size=2)
    with pytest.raises(KilledError):
        work(run, rank=1, world_size=2, most=2)  # shards 1 and 3 are its own
    assert work(run, rank=0, world_size=2) == [1, 2, 3, 7, 8, 9, 6, 10]
    assert run.complete() == Totals(8, 2, 8)


def test_a_shard_that_another_is_at_is_left_to_it(tmp_path: Path) -> None:
    run = begin(tmp_path)
    other = begin(tmp_path).shards()
    assert next(other) == 0
    assert work(run) == list(range(4, 11))
    assert run.complete() is None
    other.close()
    assert work(run) == [1, 2, 3]


def test_size_of_shards(tmp_path: Path) -> None:
    assert begin(tmp_path / "alone", 5000, size=None).size == 1000
    assert begin(tmp_path / "two", 5000, size=None, world_size=2).size == 313
    assert begin(tmp_path / "few", 3, size=None, world_size=2).size == 1
    assert begin(tmp_path / "two", 5000, size=None).size == 313  # as it was begun


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"weights": "new.pth"}, "holds a run with other weights: model.pth, not new.pth. Name"),
        ({"count": 11}, r"holds a run with other pictures: 10 \(SHA-256 .*\), not 11 \("),
        ({"form": "csv"}, "holds a run with other format: coco, not csv"),
        ({"size": 4}, "holds a run with other shard: 3, not 4"),
    ],
)
def test_another_command_is_refused(tmp_path: Path, other: Any, message: str) -> None:
    work(begin(tmp_path))
    with pytest.raises(ConfigError, match=message) as caught:
        begin(tmp_path, **other)
    assert "--overwrite" in str(caught.value)
    run = begin(tmp_path, **other, overwrite=True)
    assert len(work(run)) == other.get("count", 10)
    assert run.complete() is not None


def test_files_of_something_else_are_kept(tmp_path: Path) -> None:
    for name, content in (("images.json", "{}"), ("manifest.json", "[1]"), ("manifest.json", "x")):
        file = tmp_path / name
        file.write_text(content)
        with pytest.raises(ConfigError, match=rf"{name}.*--overwrite"):
            begin(tmp_path)
        assert file.read_text() == content
        file.unlink()


@pytest.mark.parametrize("form", ["coco", "csv"])
def test_what_a_run_did_not_write_stays(tmp_path: Path, form: str) -> None:
    own = [tmp_path / "detections" / "notes.txt", tmp_path / "shards" / "2024.tar"]
    (tmp_path / "shards" / "7").mkdir(parents=True)
    for file in own:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    for overwrite in (False, True):
        run = begin(tmp_path, form=form, overwrite=overwrite)
        assert len(work(run)) == 10
        run.complete()
        assert all(file.read_text() == "mine" for file in own)
        assert list((tmp_path / "detections").iterdir()) == own[:1]


def test_lines_of_a_journal(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    with open_journal(file) as journal:
        assert journal.done == 0
        journal.add('{"a": "ü\\n"}')
        assert list(read_journal(file)) == [{"a": "ü\n"}]  # it is in the file at once
        journal.add('{"a": 2}')
    file.write_bytes(file.read_bytes() + b'{"a": 3}')  # without an end
    with open_journal(file) as journal:
        assert journal.done == 2
        journal.add('{"a": 4}')
    assert [line["a"] for line in read_journal(file)] == ["ü\n", 2, 4]
