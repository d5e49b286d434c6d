"""Datasets at URLs equal local ones despite temporary faults of the server."""

import itertools
import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest
import torch

pytest.importorskip("aiohttp", reason="needs detlite[remote]")

from fsspec import config as fsspec_config

from detlite.apps.cli.main import main
from detlite.config import ConfigError
from detlite.data import (
    CocoDataset,
    DataError,
    build_dataset,
    build_train_dataset,
    build_train_loader,
)
from detlite.data.datasets.options import GIGABYTE, DatasetOptions
from detlite.data.images.pixels import ImageOptions
from detlite.data.locations import local_copy, parse_location
from detlite.data.remote.remote_path import RemotePath
from detlite.files.errors import RemoteError


@pytest.fixture
def remote(content, write_set, web, cache):
    """Return the small dataset over HTTP: (annotation file, image folder, server)."""
    write_set(content)
    url = f"{web.url}/small"
    return RemotePath(f"{url}/annotations.json"), RemotePath(f"{url}/images", GIGABYTE), web


def same(one, other):
    pairs = zip(one, other, strict=True)
    return len(one) == len(other) and all(
        torch.equal(image, image_2)
        and torch.equal(target["boxes"], target_2["boxes"])
        and target["image_id"] == target_2["image_id"]
        for (image, target), (image_2, target_2) in pairs
    )


@pytest.mark.parametrize(
    ("folder", "name", "url"),
    [
        ("s3://bucket/a", "b/c.jpg", "s3://bucket/a/b/c.jpg"),
        ("s3://bucket/a/", "./c.jpg", "s3://bucket/a/c.jpg"),
        ("s3://bucket/a", ".", "s3://bucket/a"),
        ("https://a.org/b?key=c/d", "e f#1.jpg", "https://a.org/b/e%20f%231.jpg?key=c/d"),
        ("zip://", "a.jpg", "zip://a.jpg"),
        ("zip://b::https://a.org/c.zip", "a.jpg", "zip://b/a.jpg::https://a.org/c.zip"),
        ("zip://::/c.zip", "a.jpg", "zip://a.jpg::/c.zip"),
        ("simplecache::s3://bucket/a", "b.jpg", "simplecache::s3://bucket/a/b.jpg"),
        ("file:///a", "b.jpg", "file:///a/b.jpg"),
    ],
)
def test_file_in_a_folder(folder, name, url):
    assert (RemotePath(folder, 7) / name) == RemotePath(url, 7)


def test_parse_location(monkeypatch):
    monkeypatch.setenv("BUCKET", "cells")
    assert parse_location("s3://${BUCKET}/a", Path("/data")) == RemotePath("s3://cells/a")
    assert parse_location("a/b", Path("/data")) == Path("/data/a/b")
    assert parse_location("a/b", RemotePath("s3://bucket")) == RemotePath("s3://bucket/a/b")
    assert parse_location("/a", RemotePath("s3://bucket")) == Path("/a")
    assert parse_location("a") == Path("a")
    assert str(RemotePath("https://a.org/b?key=secret")) == "https://a.org/b?..."
    assert RemotePath("zip://a/b.json::https://a.org/c.zip").name == "b.json"


def test_files_are_fetched_once(remote):
    annotations, images, web = remote
    for _ in range(2):
        list(CocoDataset(annotations, images))
    assert set(web.asked.values()) == {1}
    assert len(web.asked) == 5
    uncached = RemotePath(images.url)
    list(CocoDataset(annotations, uncached))
    assert web.asked["/small/images/a.png"] == 2
    options = DatasetOptions(images=ImageOptions(10_000), check_images=False)
    asked = web.asked.copy()
    CocoDataset(annotations, uncached)
    CocoDataset(annotations, uncached, options)
    assert web.asked == asked  # images are checked once


def test_changed_annotations_are_fetched_again(remote, tmp_path, content, settled, cache):
    annotations, images, web = remote
    assert len(CocoDataset(annotations, images)) == 4
    (copy,) = cache.glob("*.copy")
    os.truncate(copy, 100)
    assert len(CocoDataset(annotations, images)) == 4
    web.asked.clear()
    shutil.rmtree(cache)
    assert len(CocoDataset(annotations, images)) == 4
    content["images"].pop(2)
    (tmp_path / "small/annotations.json").write_text(json.dumps(content))
    assert len(CocoDataset(annotations, images)) == 3
    assert web.asked["/small/annotations.json"] == 2
    content["categories"][0]["name"] = "cow"  # of the same size
    (tmp_path / "small/annotations.json").write_text(json.dumps(content))
    assert CocoDataset(annotations, images).categories[1]["name"] == "cow"
    web.versioned = False
    for count in (4, 5):
        CocoDataset(annotations, images)
        assert web.asked["/small/annotations.json"] == count


def test_without_a_cache(remote, monkeypatch, caplog):
    annotations, images, web = remote
    monkeypatch.setenv("DETLITE_CACHE", "")
    assert len(list(CocoDataset(annotations, images))) == 4
    assert web.asked["/small/images/a.png"] == 2
    assert "not cached" not in caplog.text


@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize(("fault", "tries"), [(503, 5), (403, 1), ("cut", 5)])
def test_an_unreadable_image_is_an_error(remote, fault, tries, skip_bad):
    """Skipping it would make the dataset depend on the state of the server."""
    annotations, images, web = remote
    web.faults["/small/images/b.png"] = [fault] * 100
    message = rf"{web.url}/small/images/b.png: cannot be read.*\(image id 11\)"
    with pytest.raises(RemoteError, match=message):
        CocoDataset(annotations, images, DatasetOptions(skip_bad=skip_bad))
    assert web.asked["/small/images/b.png"] == tries
    dataset = CocoDataset(annotations, images, DatasetOptions(check_images=False))
    with pytest.raises(DataError, match=message):
        dataset[1]
    del web.faults["/small/images/b.png"]
    assert len(CocoDataset(annotations, images, DatasetOptions(skip_bad=skip_bad))) == 4


def test_a_damaged_copy_of_an_image_is_fetched_again(remote, cache):
    annotations, images, web = remote
    dataset = CocoDataset(annotations, images)
    before = dataset[0][0]
    for copy in (cache / "remote").glob("??/" + "?" * 38):
        data = bytearray(copy.read_bytes())
        data[100:-20] = bytes(len(data) - 120)
        copy.write_bytes(data)
    assert torch.equal(dataset[0][0], before)
    assert web.asked["/small/images/a.png"] == 2


def test_messages_name_the_url(remote, tmp_path, content):
    annotations, images, web = remote
    with pytest.raises(DataError, match=rf"{web.url}/none.json: the file does not exist"):
        CocoDataset(RemotePath(f"{web.url}/none.json"), images)
    (tmp_path / "small/images/b.png").rename(tmp_path / "b.png")
    with pytest.raises(DataError, match=r"image 11 \(b.png\): the image file does not exist"):
        CocoDataset(annotations, images)
    dataset = CocoDataset(annotations, images, DatasetOptions(skip_bad=True))
    assert dataset.image_ids == [10, 12, 13]
    dataset = CocoDataset(annotations, images, DatasetOptions(check_images=False))
    url = f"{web.url}/small/images/b.png"
    with pytest.raises(DataError, match=rf"^{url}: the image file does not exist \(image id 11\)"):
        dataset[1]
    (tmp_path / "b.png").rename(tmp_path / "small/images/b.png")
    (tmp_path / "small/annotations.json").write_text("{")
    with pytest.raises(DataError, match=rf"^{web.url}/small/annotations.json: not valid JSON"):
        CocoDataset(annotations, images)
    content["annotations"][0] |= {"bbox": [1, 1, -1, 2], "segmentation": []}
    (tmp_path / "small/annotations.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"^{web.url}/small/annotations.json: annotation 1 "):
        CocoDataset(annotations, images)


def test_dataset_in_an_archive(content, write_set, tmp_path, web, cache):
    file, folder = write_set(content)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in [file, *folder.iterdir()]:
            archive.write(path, path.relative_to(tmp_path))
    for rest in (f"{web.url}/all.zip", f"{tmp_path}/all.zip"):
        annotations = RemotePath(f"zip://small/annotations.json::{rest}")
        images = RemotePath(f"zip://small/images::{rest}", GIGABYTE)
        assert same(CocoDataset(annotations, images), CocoDataset(file, folder))
    cached = list((cache / "remote").glob("??/" + "?" * 38))
    assert len(cached) == 4  # not from the local archive


@pytest.mark.parametrize("workers", [0, 2])
def test_remote_and_local_training_batches_are_equal(remote, small_cfg, workers):
    _, _, web = remote
    local = small_cfg()
    cfg = small_cfg("DATASETS.ROOT", web.url, "DATALOADER.NUM_WORKERS", workers)
    batches = [
        list(itertools.islice(build_train_loader(one, build_train_dataset(one)), 6))
        for one in (local, cfg)
    ]
    for (images, _), (images_2, _) in zip(*batches, strict=True):
        assert all(map(torch.equal, images, images_2))
    assert web.asked["/small/images/a.png"] == 1


def test_catalog_entry_with_urls(remote, small_cfg, caplog):
    with pytest.raises(ConfigError, match=r"voc_2007_train: datasets of type 'voc' need a"):
        build_dataset(small_cfg("DATASETS.ROOT", "s3://bucket"), "voc_2007_train", train=True)
    annotations, images, _ = remote
    entry = {"name": "remote", "annotations": annotations.url, "images": images.url}
    keys = ["DATASETS.CATALOG", [entry], "DATASETS.CACHE_GB", 0.0]
    assert len(build_dataset(small_cfg(*keys), "remote", train=False)) == 4
    keys += ["DATASETS.CHECK_IMAGES", False, "DATASETS.MAX_PIXELS", 10]
    dataset = build_dataset(small_cfg(*keys), "remote", train=False)
    assert len(dataset) == 4
    with pytest.raises(DataError, match="more than 10 pixels"):
        dataset[0]
    assert not list(Path(os.environ["DETLITE_CACHE"]).glob("remote/??"))


def test_check_command_with_urls(remote, tmp_path, capsys):
    annotations, images, web = remote
    entry = {"name": "remote", "annotations": annotations.url, "images": images.url}
    model = {"MASK_ON": True, "ROI_BOX_HEAD": {"NUM_CLASSES": 3}}
    datasets = {"CATALOG": [entry], "TRAIN": ["remote"]}
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"DATASETS": datasets, "MODEL": model}))
    command = ["check", "--data", str(config)]
    assert main([*command, "--page", str(tmp_path / "page.html")]) == 0
    assert f"{web.url}/small/annotations.json" in capsys.readouterr().out
    web.faults["/small/images/a.png"] = [403]
    shutil.rmtree(os.environ["DETLITE_CACHE"])
    assert main(command) == 2
    assert "a.png: cannot be read (HTTP status 403) (image id 10)" in capsys.readouterr().err


@pytest.mark.parametrize("faults", [["reset"], ["cut", 503, 503, "cut"]])
def test_temporary_faults_of_s3(web, tmp_path, monkeypatch, faults, cache):
    pytest.importorskip("s3fs", reason="needs detlite[remote]")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setattr("random.random", lambda: 0.01)  # the client waits for random times
    monkeypatch.setitem(fsspec_config.conf, "s3", {"endpoint_url": web.url})
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets/a.bin").write_bytes(bytes(range(256)) * 100)
    for _ in range(2):
        web.faults["/sets/a.bin"] = list(faults)
        with local_copy(RemotePath("s3://sets/a.bin")) as copy:
            assert copy.read_bytes() == bytes(range(256)) * 100
        assert RemotePath("s3://sets/a.bin").read_bytes() == bytes(range(256)) * 100
        assert not web.faults["/sets/a.bin"]
