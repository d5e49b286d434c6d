"""Write WebDataset shards from a dataset in COCO's format."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np

from detlite.data.datasets.usable_images import refuse
from detlite.data.index.build import open_index
from detlite.data.index.states import Selection
from detlite.files.atomic_write import atomic_open
from detlite.files.errors import DataError

from .entries import IMAGE_SUFFIXES


def write_shards(
    annotations: Path,
    images: Path,
    folder: Path,
    *,
    name: str = "train",
    images_per_shard: int = 1000,
    seed: int = 0,
) -> list[Path]:
    """Write `<name>-000000.tar`, ... and `<name>-categories.json` for a set of type webdataset.

    The images are shuffled, because training reads a shard in sequence. Image files are copied
    unchanged. The same dataset and seed produce the same bytes.

    Args:
        annotations: the annotation file, see `CocoDataset`.
        images: the folder of the images.
        folder: the folder of the shards, created if missing.
        name: prefix of the file names.
        images_per_shard: number of images in a shard; the last one may have fewer.
        seed: seed of the shuffle.

    Raises:
        DataError: an annotation is invalid, an image is missing or has a format that shards do not
            support, or the shards cannot be written.
    """
    index = open_index(annotations)
    problems, count = index.problems(Selection(), limit=1)
    if count:
        refuse(problems, count, annotations, "Fix the file with `detlite check --repair`")
    for number in range(len(index.image_ids)):
        file_name = index.image(number)["file_name"]
        if Path(file_name).suffix.lower()[1:] not in IMAGE_SUFFIXES:
            raise DataError(
                f"{images / file_name}: images in shards must be {', '.join(IMAGE_SUFFIXES)}. "
                "Convert it, and change its name in the annotations"
            )
    order = np.random.default_rng(seed).permutation(len(index.image_ids)).tolist()
    shards = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for start in range(0, len(order), images_per_shard):
            shard = folder / f"{name}-{start // images_per_shard:06d}.tar"
            with atomic_open(shard, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
                for number in order[start : start + images_per_shard]:
                    image = index.image(number)
                    image_file = images / image["file_name"]
                    if not image_file.is_file():
                        raise DataError(f"{image_file}: the image file does not exist")
                    sample = {
                        "image_id": image["id"],
                        "height": image["height"],
                        "width": image["width"],
                        "annotations": [
                            {key: value for key, value in row.items() if key != "image_id"}
                            for row in index.annotations(number)
                        ],
                    }
                    key = f"{image['id']:012d}"
                    _add(tar, f"{key}{image_file.suffix.lower()}", image_file.read_bytes())
                    _add(tar, f"{key}.json", json.dumps(sample).encode())
            shards.append(shard)
        with atomic_open(folder / f"{name}-categories.json") as file:
            file.write(json.dumps({"categories": index.content["categories"]}))
    except OSError as error:
        raise DataError(f"{folder}: the shards cannot be written ({error})") from error
    return shards


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
