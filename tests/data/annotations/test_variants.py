"""Every entrance reads the same images and objects in a file, or refuses it."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from detlite.apps.dataset_check.inspection import inspect_dataset
from detlite.apps.dataset_formats.coco_files import read_coco
from detlite.data import CocoDataset
from detlite.data.annotations.ids import Ids
from detlite.data.annotations.rules import mask_area
from detlite.data.annotations.store import table_of
from detlite.data.datasets import ground_truth
from detlite.data.datasets.ground_truth import build_coco_gt, read_coco_gt
from detlite.data.datasets.options import DatasetOptions
from detlite.files.cache import VARIABLE
from detlite.files.errors import DataError
from tests.data.annotations.variants import HEIGHT, WIDTH, variants

VARIANTS = list(variants())
# Findings that depend on how a file is used.
_OF_USE = ("images without", "crowds", '"ignore"', "image files", "not used, because", "EXIF")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("variants")
    for number in range(1, 7):
        name = folder / f"{number}.png"
        Image.fromarray(np.full((HEIGHT, WIDTH, 3), 9 * number, np.uint8)).save(name)
    return folder


def outcome(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except DataError:
        return "refused"


def seen(coco: COCO) -> dict[str, Any]:
    """Return the images, categories and objects of a ground truth."""
    objects = []
    sizes = {row["id"]: (row["height"], row["width"]) for row in coco.dataset["images"]}
    for row in coco.dataset["annotations"]:
        pixels = 0.0
        if not row["iscrowd"] and "segmentation" in row:
            pixels = mask_area(row["segmentation"], *sizes[row["image_id"]])
        name, points = coco.cats[row["category_id"]]["name"], row.get("keypoints")
        points = points and (points, row.get("num_keypoints"))
        box, area = np.round(row["bbox"], 6).tolist(), round(row["area"], 6)
        mark = row["image_id"], name, row["iscrowd"], box, area, pixels, points
        objects.append((row["id"] if row["id"] > 0 else None, *mark))
    images = {row["id"]: row["file_name"] for row in coco.dataset["images"]}
    return {
        "images": images,
        "names": coco.dataset["categories"],
        "objects": sorted(objects, key=str),
    }


@pytest.mark.parametrize(("name", "content", "change", "needed"), VARIANTS,
                         ids=[name for name, *_ in VARIANTS])  # fmt: skip
def test_all_entrances_agree(name, content, change, needed, folder, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    inspection = "detlite.apps.dataset_check.inspection"
    unread = lambda _, table, n: ([], tuple(table.sizes[n].tolist()), (False, 0, 0))  # noqa: E731
    monkeypatch.setattr(f"{inspection}._inspect", unread)
    monkeypatch.setattr(f"{inspection}.check_images", lambda *_: ({}, []))
    # Content in memory is read once, as a file is.
    kept = cache(lambda key, nameless: table_of(in_memory, key, nameless))
    monkeypatch.setattr(
        ground_truth, "table_of", lambda _, key, nameless=False: kept(key, nameless)
    )
    changed = change(content)
    data = changed if isinstance(changed, str | bytes) else json.dumps(content)
    file = tmp_path / "annotations.json"
    file.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
    keypoints = name.startswith("keypoints:")
    kinds = ["segm", *["keypoints"] * keypoints]
    try:
        in_memory = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        in_memory = None
    for skip in (False, True):
        options = DatasetOptions(keypoints=keypoints, skip_bad=skip, check_images=False)
        found = {
            "file": outcome(lambda skip=skip: seen(read_coco_gt(file, kinds, skip))),
            "test": outcome(lambda options=options: CocoDataset(file, folder, options)),
        }
        if in_memory is not None:
            coco = COCO()
            coco.dataset = in_memory
            for source, key in ((in_memory, "dict"), (coco, "object")):
                found[key] = outcome(lambda x=source, s=skip: seen(read_coco_gt(x, kinds, s)))
        if found["test"] == "refused":
            assert needed or set(map(str, found.values())) == {"refused"}
            if not skip:
                assert inspect_dataset(file, folder, options, masks=True).refused
            continue
        dataset = found["test"]
        found["test"] = seen(build_coco_gt(dataset))
        if not needed:
            assert all(value == found["test"] for value in found.values()), found
        if not skip:
            continue
        check_training(file, folder, options, dataset)
        check_ids(dataset, in_memory)
        init = outcome(lambda: read_coco(file, folder)[0])
        if isinstance(init, dict):  # the file that `detlite init` writes
            assert len(table_of(init, "init").flags) == len(dataset.table.flags)


def check_training(file: Path, folder: Path, options: DatasetOptions, dataset: CocoDataset) -> None:
    """Compare the targets of training, and the objects of `detlite check`, with a test set."""
    arguments: Any = {"train": True, "background": True}
    trained = outcome(lambda: CocoDataset(file, folder, replace(options, **arguments)))
    inspection = inspect_dataset(file, folder, replace(options, **arguments), masks=True)
    truth = build_coco_gt(dataset)
    objects = [row for row in truth.dataset["annotations"] if not row["iscrowd"]]
    assert trained != "refused" or not objects
    for number, image_id in enumerate(trained.image_ids if objects else ()):
        target = trained._target(number, trained.sizes[number])
        rows = [row for row in objects if row["image_id"] == image_id]
        names = [trained.categories[k - 1]["name"] for k in target["labels"].tolist()]
        assert names == [truth.cats[row["category_id"]]["name"] for row in rows]
        pixels = target["masks"].bitmaps(*trained.sizes[number]).flatten(1).sum(1).tolist()
        height, width = trained.sizes[number]
        assert pixels == [mask_area(row["segmentation"], height, width) for row in rows]
        xywh = np.array([row["bbox"] for row in rows], np.float64).reshape(-1, 4)
        corners = np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1)
        expected = corners.clip(0, [width, height] * 2).astype(np.float32)
        assert target["boxes"].tolist() == expected.tolist()
    checked = [row for number in dataset.numbers.tolist() for row in inspection.rows(number)
               if not row.get("iscrowd")]  # fmt: skip
    if not options.keypoints:
        assert len(checked) == len(objects)
    found, stated = (
        {one.what for one in findings if not any(text in one.what for text in _OF_USE)}
        for findings in (dataset.findings, inspection.findings)
    )
    assert found == stated or options.keypoints


def check_ids(dataset: CocoDataset, in_memory: Any) -> None:
    """The ids as they are written belong to the images of the table, without ambiguity."""
    if not isinstance(in_memory, dict):
        return
    ids = Ids.of_entries(map(dataset.table.image, range(len(dataset.table))))
    rows = [row for row in in_memory["images"] if isinstance(row, dict)]
    named = {dataset.table.image(n)["file_name"]: dataset.table.image(n)["id"]
             for n in range(len(dataset.table))}  # fmt: skip
    unique = len(named) == len(dataset.table)
    for row in rows if unique else ():
        number = ids.number(row.get("id"))
        if row.get("file_name") in named and number is not None:
            assert number == named[row["file_name"]]
