"""Datasets in tar shards: equality with datasets in files, reading in sequence, invalid shards."""

import hashlib
import io
import itertools
import json
import multiprocessing
import os
import tarfile
import time

import numpy as np
import pytest
import torch

from detlite.apps.cli.main import main
from detlite.apps.shards import dataset as module
from detlite.apps.shards import entries
from detlite.apps.shards.dataset import expand_range
from detlite.apps.shards.tar_files import BLOCK, Shard
from detlite.apps.shards.writer import write_shards
from detlite.data import (
    CocoDataset,
    DataError,
    build_dataset,
    build_test_loader,
    build_train_dataset,
    build_train_loader,
)
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.data.datasets.options import DatasetOptions
from detlite.files import retry
from tests.builders import coco_content, coco_object, rectangle, write_noise, write_text
from tests.data.servers import serving, upload


@pytest.fixture
def shards(content, write_set, tmp_path, cache):
    """Write the four images of the small dataset to two shards; return their paths."""
    return write_shards(*write_set(content), tmp_path / "tars", images_per_shard=2)


def webdataset(name, count, root=""):
    """Return the entry of a dataset in DATASETS.CATALOG."""
    shards = f"{root}tars/train-{{000000..{count - 1:06d}}}.tar"
    categories = f"{root}tars/train-categories.json"
    return {"name": name, "type": "webdataset", "shards": shards, "categories": categories}


@pytest.fixture
def shard_cfg(small_cfg):
    """`shard_cfg(*opts)`: load a config for `shards`."""
    small = {"name": "small", "annotations": "small/annotations.json", "images": "small/images"}
    keys = ["DATASETS.CATALOG", [webdataset("tars", 2), small], "DATASETS.TRAIN", ("tars",)]
    return lambda *opts: small_cfg(*keys, *opts)


@pytest.fixture
def build(shard_cfg):
    """`build(*opts)`: the dataset `tars` as for evaluation."""
    return lambda *opts: build_dataset(shard_cfg(*opts), "tars", train=False)


SKIP = "DATASETS.ON_BAD_ANNOTATION", "skip"


def samples(dataset):
    return {target["image_id"]: (image, target) for image, target in dataset}


def take(loader, count):
    return [
        ([target["image_id"] for target in targets], images)
        for images, targets in itertools.islice(loader, count)
    ]


def equal(one, other):
    return all(
        ids == ids_2 and all(map(torch.equal, images, images_2))
        for (ids, images), (ids_2, images_2) in zip(one, other, strict=True)
    )


@pytest.fixture
def many(tmp_path, cache, small_cfg):
    """`many(*opts)`: load a config for 60 small images, wide and tall, in six shards."""
    rng, box = np.random.default_rng(0), [2, 2, 10, 10]
    numbers = range(1, 61)
    content = coco_content(
        (coco_object(box, 1 + (n % 20 == 0), n, segmentation=rectangle(*box)) for n in numbers),
        numbers,
    )
    for row in content["images"]:
        row["width"], row["height"] = (24, 16) if rng.random() < 0.6 else (16, 24)
        write_noise(tmp_path / "images" / row["file_name"], row["height"], row["width"], row["id"])
    file = write_text(tmp_path / "many.json", json.dumps(content))
    write_shards(file, tmp_path / "images", tmp_path / "tars", images_per_shard=10)

    def load(*opts, root=""):
        keys = ["DATASETS.CATALOG", [webdataset("many", 6, root)], "DATASETS.TRAIN", ("many",)]
        return small_cfg(*keys, "SOLVER.IMS_PER_BATCH", 4, "DATALOADER.SHARD_SHUFFLE", 5, *opts)

    return load


def test_expand_range():
    assert expand_range("a-{08..10}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert expand_range("{0..1}/{1..2}") == ["0/1", "0/2", "1/1", "1/2"]
    assert expand_range("a.tar") == ["a.tar"]
    for text in ("{2..1}", "{0..99999999}"):
        with pytest.raises(DataError, match="must be a range of 1 to"):
            expand_range(text)


def test_shards_and_files_are_equal(shards, shard_cfg, tmp_path, build):
    files = CocoDataset(
        tmp_path / "small/annotations.json", tmp_path / "small/images", DatasetOptions(train=True)
    )
    dataset = build_dataset(shard_cfg(), "tars", train=True)
    expected, actual = samples(files), samples(dataset)
    assert actual.keys() == expected.keys() == {10, 11}
    for number, (image, target) in expected.items():
        assert torch.equal(actual[number][0], image)
        assert torch.equal(actual[number][1]["boxes"], target["boxes"])
        assert torch.equal(actual[number][1]["labels"], target["labels"])
        assert torch.equal(
            actual[number][1]["masks"].bitmaps(*target["size"]),
            target["masks"].bitmaps(*target["size"]),
        )
    evaluated = build()
    assert sorted(evaluated.image_ids) == [10, 11, 12, 13]
    assert len(build_coco_gt(evaluated).anns) == 4


def test_shards_are_indexed_once(shards, shard_cfg, monkeypatch, settled):
    read = []
    read_entries = module.read_entries

    def counting(shard):
        read.append(shard.file)
        return read_entries(shard)

    monkeypatch.setattr(module, "read_entries", counting)
    for _ in range(2):
        build_dataset(shard_cfg(), "tars", train=True)
    assert sorted(read) == shards
    os.utime(shards[1], (1, 1))
    build_dataset(shard_cfg(), "tars", train=True)
    assert len(read) == 3
    assert read[2] == shards[1]


def test_batches_are_sequential_and_shuffled(many):
    dataset = build_train_dataset(many())
    shard = dict(zip((t["image_id"] for _, t in dataset), dataset.shards.tolist(), strict=True))
    batches = take(build_train_loader(many(), dataset), 60)
    seen = [number for ids, _ in batches for number in ids]
    assert sorted(seen) == sorted([*range(1, 61)] * 4)
    epochs = [[], [], [], []]
    counts = dict.fromkeys(range(1, 61), 0)
    for number in seen:
        epochs[counts[number]].append(number)
        counts[number] += 1
    orders = []
    for one in epochs:
        order = list(dict.fromkeys(shard[number] for number in one))
        orders.append(order)
        # An image moves by less than the window of 5 in its group, wide or tall, and the groups
        # differ by a few batches.
        start = [order.index(shard[number]) * 10 for number in one]
        assert max(abs(first - n) for n, first in enumerate(start)) < 10 + 2 * 5 + 3 * 4
    assert orders[0] != orders[1] != orders[2]
    assert epochs[0] != epochs[1]


@pytest.mark.slow
def test_resuming_returns_the_same_batches(many):
    straight = take(build_train_loader(many(), build_train_dataset(many())), 40)
    for start in (1, 17, 33):
        resumed = build_train_loader(many(), build_train_dataset(many()), start_iter=start)
        assert equal(take(resumed, 40 - start), straight[start:])
    workers = many("DATALOADER.NUM_WORKERS", 2)
    assert equal(take(build_train_loader(workers, build_train_dataset(workers)), 40), straight)
    other = many("SEED", 1)
    assert not equal(take(build_train_loader(other, build_train_dataset(other)), 40), straight)


def _digests(cfg, start):
    """Yield a digest of each batch from an iteration on."""
    for images, targets in build_train_loader(cfg, build_train_dataset(cfg), start_iter=start):
        digest = hashlib.sha256()
        for image, target in zip(images, targets, strict=True):
            digest.update(image.numpy().tobytes() + target["boxes"].numpy().tobytes())
        yield digest.hexdigest()


def _write_digests(cfg, start, file):
    with file.open("a") as opened:
        for digest in _digests(cfg, start):
            opened.write(f"{digest}\n")
            opened.flush()


@pytest.mark.slow
def test_killed_processes_resume_with_the_same_batches(many, tmp_path):
    context = multiprocessing.get_context("fork")
    file = tmp_path / "digests"
    file.touch()
    for workers in (2, 0, 1):
        before = len(file.read_text().splitlines())
        cfg = many("DATALOADER.NUM_WORKERS", workers)
        process = context.Process(target=_write_digests, args=(cfg, before, file))
        process.start()
        deadline = time.monotonic() + 60
        while len(file.read_text().splitlines()) < before + 7 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()
        process.join()
        whole = file.read_text().rpartition("\n")[0]
        file.write_text(whole + "\n" * bool(whole))  # the last line may be incomplete
    digests = file.read_text().splitlines()
    assert len(digests) >= 21
    assert digests == list(itertools.islice(_digests(many(), 0), len(digests)))


def test_processes_divide_the_batches(many, monkeypatch):
    alone = take(build_train_loader(many(), build_train_dataset(many())), 20)
    monkeypatch.setattr("detlite.distributed.world_size", lambda: 2)
    shares = []
    for rank in (0, 1):
        monkeypatch.setattr("detlite.distributed.rank", lambda rank=rank: rank)
        shares.append(take(build_train_loader(many(), build_train_dataset(many())), 20))
    joined = [
        (ids + ids_2, images + images_2)
        for (ids, images), (ids_2, images_2) in zip(*shares, strict=True)
    ]
    assert equal(joined, alone)


def test_rare_categories_are_repeated_nearby(many):
    """Category 2 is in 3 of 60 images: sqrt(0.2 / 0.05) = 2 times."""
    cfg = many("DATALOADER.REPEAT_THRESHOLD", 0.2)
    batches = take(build_train_loader(cfg, build_train_dataset(cfg)), 63)
    seen = [number for ids, _ in batches for number in ids]
    assert sorted(seen) == sorted([*range(1, 61), 20, 40, 60] * 4)


def test_pasted_objects_come_from_the_same_shard(many, monkeypatch):
    cfg = many("INPUT.COPY_PASTE_PROB", 1.0)
    dataset = build_train_dataset(cfg)
    shard = dict(zip((t["image_id"] for _, t in dataset), dataset.shards.tolist(), strict=True))
    loader = build_train_loader(cfg, dataset)
    pairs = []

    def recording(image, target, source, objects):
        pairs.append((shard[target["image_id"]], shard[objects["image_id"]]))
        return image, target

    monkeypatch.setattr("detlite.data.transforms.copy_paste.paste_objects", recording)
    monkeypatch.setattr("detlite.data.transforms.copy_paste.choose_objects", lambda target: target)
    take(loader, 10)
    assert len(pairs) == 40
    assert all(own == other for own, other in pairs)


def test_training_on_shards_and_files(shards, shard_cfg):
    cfg = shard_cfg("DATASETS.TRAIN", ("small", "tars", "small"))
    dataset = build_train_dataset(cfg)
    numbers = dataset.shards.tolist()
    assert numbers[:2] == [0, 1]
    assert len(set(numbers[2:4]) & {0, 1, *numbers[4:]}) == 0
    assert numbers == sorted(numbers)
    assert numbers[5] == numbers[4] + 1
    ids = [number for ids, _ in take(build_train_loader(cfg, dataset), 6) for number in ids]
    assert sorted(ids) == [10] * 6 + [11] * 6


def test_evaluation_covers_each_image_once(many):
    cfg = many()
    dataset = build_dataset(cfg, "many", train=False)
    loader = build_test_loader(cfg, dataset)
    ids = [target["image_id"] for _, targets in loader for target in targets]
    assert ids == dataset.image_ids
    assert sorted(ids) == list(range(1, 61))


# Invalid shards


def rewrite(shard, change):
    """Replace the members [(name, bytes)] of a shard by `change(members)`."""
    with tarfile.open(shard) as tar:
        members = [(member.name, tar.extractfile(member).read()) for member in tar]
    with tarfile.open(shard, "w") as tar:
        for name, data in change(members):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def edited(**fields):
    """Return a function that changes fields of the first json."""

    def change(members):
        index = next(n for n, (name, _) in enumerate(members) if name.endswith(".json"))
        sample = {**json.loads(members[index][1]), **fields}
        members[index] = (members[index][0], json.dumps(sample).encode())
        return members

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: [one for n, one in enumerate(m) if n != 0], "has 0 images"),
        (lambda m: [one for n, one in enumerate(m) if n != 1], "has no json"),
        (lambda m: [m[0], (m[1][0], b"{"), *m[2:]], "is not JSON"),
        (lambda m: [m[0], (m[1][0], b"[]"), *m[2:]], r"has a json that is not an object: \[\]"),
        (lambda m: [m[0], (m[0][0][:-3] + "jpg", b""), *m[1:]], "has 2 images"),
        (edited(width=None), "has width: None"),
        (edited(height=0), "has height: 0"),
        (edited(image_id="7a"), "has image_id: '7a'"),
        (edited(annotations={}), "has annotations: {}"),
        (edited(annotations=[3]), r"has annotations: \[3\]"),
    ],
)
def test_bad_entries_are_errors_or_skipped(shards, build, change, message):
    rewrite(shards[0], change)
    with pytest.raises(DataError, match=rf"train-\{{.*: train-000000.tar: '0000.*' {message}"):
        build()
    dataset = build(*SKIP)
    assert len(dataset) == 3
    assert "entries of shards that cannot be used: 1 image, for" in str(dataset.findings[0])


@pytest.mark.parametrize("where", ["data", "header", "end", "all"])
def test_truncated_shards(shards, build, where):
    """A cut between blocks of the tar file is found, too."""
    data = shards[1].read_bytes()
    with tarfile.open(shards[1]) as tar:
        members = tar.getmembers()
    last = members[-1]
    length = {
        "data": last.offset_data + 10,
        "header": last.offset + 100,
        "end": last.offset_data + (last.size + BLOCK - 1) // BLOCK * BLOCK,
        "all": 0,
    }[where]
    shards[1].write_bytes(data[:length])
    problem = r"train-000001.tar: (the shard is truncated|'0.*has no json)"
    with pytest.raises(DataError, match=problem):
        build()
    dataset = build(*SKIP)
    assert len(dataset) == {"data": 3, "header": 3, "end": 4, "all": 2}[where]


def test_bad_annotations_are_reported(shards, shard_cfg):
    row = {"id": 99, "category_id": 7, "bbox": [1, 1, -5, 5], "segmentation": []}
    rewrite(shards[0], edited(annotations=[row]))
    with pytest.raises(
        DataError, match=r"train-\{000000..000001\}.tar: annotation 99 \(image 1\d\)"
    ):
        build_dataset(shard_cfg(), "tars", train=True)


def test_damaged_images(shards, build):
    def change(members):
        name, data = members[0]
        return [(name, data[: len(data) // 2]), *members[1:]]

    rewrite(shards[0], change)
    with pytest.raises(DataError, match=r"image 1\d \(train-000000.tar/0+1\d.png\): .*truncated"):
        build()
    assert len(build(*SKIP)) == 3
    dataset = build("DATASETS.CHECK_IMAGES", False)
    message = r"tars/train-000000.tar: 0+1\d.png: the image is damaged.*\(image id 1\d\)"
    with pytest.raises(DataError, match=message):
        list(dataset)


def test_unreadable_shards_are_not_skipped(shards, build, monkeypatch):
    def failing(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Shard, "read", failing)
        with pytest.raises(DataError, match=r"train-00000.\.tar: cannot be read \(Input/output"):
            build(*SKIP)
    assert len(build(*SKIP)) == 4


def test_check_command_with_shards(shards, shard_cfg, tmp_path, capsys):
    config = tmp_path / "config.yaml"
    datasets = {"CATALOG": shard_cfg().DATASETS.CATALOG, "TRAIN": ["tars"], "ROOT": str(tmp_path)}
    heads = {"ROI_BOX_HEAD": {"NUM_CLASSES": 3}}
    config.write_text(json.dumps({"DATASETS": datasets, "MODEL": {"MASK_ON": True, **heads}}))
    assert main(["check", "--data", str(config), "--page", str(tmp_path / "page.html")]) == 0
    printed = capsys.readouterr().out
    assert "tars/train-{000000..000001}.tar\n  images: 4, 2 without objects" in printed
    rewrite(shards[0], lambda members: [(members[0][0], b"x" * 99), *members[1:]])
    assert main(["check", "--data", str(config)]) == 1
    assert "error: image 1" in capsys.readouterr().out


def test_a_shard_that_changes_in_use(shards, build):
    dataset = build()
    rewrite(shards[0], lambda members: [("first.txt", b"x"), *members])
    with pytest.raises(DataError, match=r"the shard has changed since it was indexed"):
        list(dataset)
    assert len(samples(build())) == 4


def test_missing_and_empty_shards(shards, build):
    shards[1].write_bytes(shards[0].read_bytes())
    problem = r"train-\{0+..000001\}.tar: .*image 1\d, .*the id occurs twice"
    with pytest.raises(DataError, match=problem):
        build()
    for shard in shards:
        rewrite(shard, lambda members: [("readme.txt", b"")])
    with pytest.raises(DataError, match=r"\}.tar: there is no image in the shards \(2 shards"):
        build()
    shards[1].unlink()
    with pytest.raises(DataError, match=r"train-000001.tar: the shard does not exist"):
        build()


def test_other_files_are_ignored(shards, build):
    def change(members):
        (name, _), *others = members
        return [("readme.txt", b"x"), members[0], (name[:-3] + "cls", b"3"), *others]

    rewrite(shards[0], change)
    assert len(build()) == 4


@pytest.mark.parametrize("text", ["[]", "{", '{"categories": 3}'])
def test_bad_categories(shards, build, tmp_path, text):
    (tmp_path / "tars/train-categories.json").write_text(text)
    problem = r"train-categories.json: (cannot be read as JSON|must be an object)"
    with pytest.raises(DataError, match=problem):
        build()


# Shards at URLs


@pytest.fixture
def web(tmp_path, monkeypatch):
    """Serve tmp_path, and skip the waits between attempts."""
    pytest.importorskip("aiohttp", reason="needs detlite[remote]")
    monkeypatch.setattr(retry.time, "sleep", lambda seconds: None)
    with serving(tmp_path) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("cache_gb", [1.0, 0.0])
def test_shards_over_http(many, web, cache_gb, monkeypatch):
    monkeypatch.setattr("detlite.apps.shards.tar_files.CHUNK", 4096)
    monkeypatch.setattr(entries, "CHUNK", 4096)
    expected = take(build_train_loader(many(), build_train_dataset(many())), 16)
    keys = "DATASETS.CACHE_GB", cache_gb, "DATALOADER.NUM_WORKERS", 1
    web.faults = {f"/tars/train-00000{n}.tar": [503, "cut", "", "reset"] for n in range(6)}
    cfg = many(*keys, root=f"{web.url}/")
    dataset = build_train_dataset(cfg)
    before = web.asked.copy()
    assert equal(take(build_train_loader(cfg, dataset), 16), expected)
    assert not any(web.faults.values())
    if cache_gb:
        assert web.asked == before  # the check of the images cached all chunks


@pytest.mark.slow
def test_shards_in_a_bucket(many, s3, tmp_path):
    upload(s3, tmp_path)
    expected = take(build_train_loader(many(), build_train_dataset(many())), 30)
    cfg = many("DATALOADER.NUM_WORKERS", 1, root="s3://sets/")
    assert equal(take(build_train_loader(cfg, build_train_dataset(cfg)), 30), expected)


def test_errors_of_remote_shards(many, web):
    web.faults["/tars/train-000003.tar"] = [403] * 100
    with pytest.raises(
        DataError, match=r"/tars/train-000003.tar: cannot be read \(HTTP status 403"
    ):
        build_train_dataset(many(root=f"{web.url}/"))
    web.faults.clear()
    dataset = build_train_dataset(many(root=f"{web.url}/"))
    assert len(dataset) == 60
    web.versioned = False
    with pytest.raises(DataError, match=r"reports no size or no version"):
        build_train_dataset(many(root=f"{web.url}/"))


def test_a_changed_remote_shard_is_indexed_again(many, web, tmp_path):
    cfg = many(root=f"{web.url}/")
    dataset = build_train_dataset(cfg)
    rewrite(tmp_path / "tars/train-000000.tar", lambda members: members[2:])
    assert len(dataset) == 60
    assert len(build_train_dataset(cfg)) == 59
