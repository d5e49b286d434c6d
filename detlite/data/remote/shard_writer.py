"""Shards written from a data set in COCO's form."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np

from detlite.data.errors import DataError
from detlite.data.index.cache import appearing, open_index
from detlite.data.index.coco_checks import MOST_SHOWN, report
from detlite.data.index.index import unsound_bits

from .shard_entries import PICTURES


def write_shards(
    annotations: Path,
    images: Path,
    folder: Path,
    *,
    name: str = "train",
    images_per_shard: int = 1000,
    seed: int = 0,
) -> list[Path]:
    """Writes `<name>-000000.tar`, ... and `<name>-categories.json` for a set of type webdataset.

    The images come in random order, as those of a shard are read one after another. Pictures are
    copied as they are. The same set and seed give the same bytes.

    Args:
        annotations, images: of a data set on the disk, see `CocoDataset`.
        folder: of the shards; it is made where there is none.
        name: what the files begin with.
        images_per_shard: of the last one what is left.
        seed: of the order.

    Returns:
        The shards.

    Raises:
        DataError: an annotation is unsound, a picture is missing or of a form that shards do not
            have, or there is no room.
    """
    index = open_index(annotations)
    problems, count = index.problems(masks=False, keypoint_count=0, most=MOST_SHOWN)
    report(problems, count, annotations, skip=False)
    for number in range(len(index.image_ids)):
        file_name = index.image(number)["file_name"]
        if Path(file_name).suffix.lower().removeprefix(".") not in PICTURES:
            raise DataError(
                f"{images / file_name}: pictures in shards are {', '.join(PICTURES)}: "
                "convert it, and name the new file in the annotations"
            )
    order = np.random.default_rng(seed).permutation(len(index.image_ids)).tolist()
    shards = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for start in range(0, len(order), images_per_shard):
            shard = folder / f"{name}-{start // images_per_shard:06d}.tar"
            with appearing(shard) as file, tarfile.open(fileobj=file, mode="w") as tar:
                for number in order[start : start + images_per_shard]:
                    image = index.image(number)
                    picture = images / image["file_name"]
                    if not picture.is_file():
                        raise DataError(f"{picture}: no such picture file")
                    sample = {
                        "image_id": image["id"],
                        "height": image["height"],
                        "width": image["width"],
                        "annotations": [
                            {key: value for key, value in row.items() if key != "image_id"}
                            for row in index.annotations(number, unsound_bits(False, False))
                        ],
                    }
                    key = f"{image['id']:012d}"
                    _add(tar, f"{key}{picture.suffix.lower()}", picture.read_bytes())
                    _add(tar, f"{key}.json", json.dumps(sample).encode())
            shards.append(shard)
        with appearing(folder / f"{name}-categories.json") as file:
            file.write(json.dumps({"categories": index.content["categories"]}).encode())
    except OSError as error:
        raise DataError(f"{folder}: the shards cannot be written ({error})") from error
    return shards


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
