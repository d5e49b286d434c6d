"""Read folders of PASCAL VOC's XML files, which LabelImg, CVAT and others write too: boxes only."""

from collections import defaultdict
from pathlib import Path

from detlite.data.datasets.voc_xml import VocFile, read_voc_file
from detlite.data.errors import DataError
from detlite.data.loading.image_io import image_size

from .labeled_dataset import (
    LabeledDataset,
    LabeledImage,
    LabeledObject,
    check_size,
    images_under,
    read_lines,
)

_FOLDERS = ("Annotations", "annotations", "")
_MASK_FOLDERS = ("SegmentationObject", "SegmentationClass")


def is_voc(folder: Path) -> bool:
    """Return True if there are XML files with boxes in a folder or its `Annotations`."""
    files = _xml_files(folder)
    return bool(files) and b"<annotation" in files[0].read_bytes()[:4096]


def read_voc_folder(folder: Path) -> dict[str, LabeledDataset]:
    """Read the XML files of a folder as "train", or as the "train" and "val" of ImageSets/Main.

    Images without an XML file are skipped. Difficult objects become crowds. Pixels are counted from
    0 if any coordinate is below 1, and otherwise from 1, as in VOC.

    Raises:
        DataError: a file or object is invalid.
    """
    files = {file.stem: file for file in _xml_files(folder)}
    contents = {stem: read_voc_file(file) for stem, file in files.items()}
    objects = [obj for content in contents.values() for obj in content.objects]
    first = 0.0 if any(min(obj.corners) < 1 for obj in objects) else 1.0
    images: defaultdict[str, list[Path]] = defaultdict(list)
    for image in images_under(folder, [folder / name for name in _MASK_FOLDERS]):
        images[image.stem].append(image)
        images[image.name].append(image)
    lists = {split: folder / "ImageSets" / "Main" / f"{split}.txt" for split in ("train", "val")}
    splits = {"train": list(files)}
    if all(file.is_file() for file in lists.values()):
        splits = {split: list(map(str.strip, read_lines(file))) for split, file in lists.items()}
    categories = sorted({obj.name for obj in objects})
    datasets = {}
    for split, stems in splits.items():
        labeled = []
        for stem in filter(None, dict.fromkeys(stems)):
            if stem not in files:
                raise DataError(f"{folder}: ImageSets lists {stem}, but there is no {stem}.xml")
            image = _find_image(contents[stem], files[stem], images)
            labeled.append(_labeled_image(contents[stem], files[stem], image, first))
        datasets[split] = LabeledDataset(folder, labeled, categories)
    return datasets


def _xml_files(folder: Path) -> list[Path]:
    candidates = (sorted((folder / name).glob("*.xml")) for name in _FOLDERS)
    return next((files for files in candidates if files), [])


def _find_image(content: VocFile, file: Path, images: dict[str, list[Path]]) -> Path:
    """Return the image that the file refers to, or else the image of the same name."""
    for name in (content.file_name.replace("\\", "/").rpartition("/")[2], file.stem):
        candidates = images.get(name, [])
        if len(candidates) > 1:
            raise DataError(
                f"{file}: {name} is ambiguous: {candidates[0]} or {candidates[1]}; remove one"
            )
        if candidates:
            return candidates[0]
    raise DataError(f"{file}: its image {content.file_name!r} does not exist in any folder")


def _labeled_image(content: VocFile, file: Path, image: Path, first: float) -> LabeledImage:
    size = check_size(image, content.size, file) if all(content.size) else image_size(image)
    objects = []
    for number, obj in enumerate(content.objects, start=1):
        box = obj.box(first)
        if not (box[2] > 0 and box[3] > 0):
            raise DataError(
                f"{file}: object {number} ({obj.name}): width {box[2]:g} and height {box[3]:g} "
                "must be positive"
            )
        objects.append(LabeledObject(obj.name, box, crowd=obj.difficult))
    return LabeledImage(image, size, objects)
