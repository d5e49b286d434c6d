"""XML files of PASCAL VOC, as VOC itself, LabelImg, CVAT and others write them: boxes alone."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from detlite.data.datasets.voc_xml import VocFile, read_voc_file
from detlite.data.errors import DataError
from detlite.data.loading.image_io import image_size

from .labeled_dataset import LabelledObject, LabelledPicture, LabelledSet, pictures_under

_FOLDERS = ("Annotations", "annotations", "")
# Of VOC itself: masks, which are no pictures.
_NO_PICTURES = ("SegmentationObject", "SegmentationClass")


def is_voc(folder: Path) -> bool:
    """Whether there are XML files with boxes, in the folder or its Annotations."""
    files = _xml_files(folder)
    return bool(files) and b"<annotation" in files[0].read_bytes()[:4096]


def read_voc_folder(folder: Path) -> dict[str, LabelledSet]:
    """The XML files of a folder: "train", and "val" where ImageSets/Main has both lists.

    A picture without an XML file is left out. Difficult objects become crowds. Where a coordinate
    below 1 occurs anywhere, pixels are counted from 0, else from 1, as in VOC.

    Raises:
        DataError: naming the file, and which object of it.
    """
    files = {file.stem: file for file in _xml_files(folder)}
    read = {stem: read_voc_file(file) for stem, file in files.items()}
    lowest = min((v for one in read.values() for o in one.objects for v in o.corners), default=1.0)
    first = 0.0 if lowest < 1 else 1.0
    pictures: defaultdict[str, list[Path]] = defaultdict(list)
    for picture in pictures_under(folder, [folder / name for name in _NO_PICTURES]):
        pictures[picture.stem].append(picture)
        pictures[picture.name].append(picture)

    def labelled(stem: str) -> LabelledPicture:
        if stem not in read:
            raise DataError(f"{folder}: ImageSets names {stem}, and there is no {stem}.xml")
        one, file = read[stem], files[stem]
        return _labelled(one, file, _picture(one, file, pictures), first)

    splits = {split: folder / "ImageSets" / "Main" / f"{split}.txt" for split in ("train", "val")}
    if all(listed.is_file() for listed in splits.values()):
        stems = {split: _listed(file) for split, file in splits.items()}
    else:
        stems = {"train": list(read)}
    names = sorted({one.name for found in read.values() for one in found.objects})
    return {
        split: LabelledSet(folder, [labelled(stem) for stem in listed], names)
        for split, listed in stems.items()
    }


def _listed(file: Path) -> list[str]:
    """The names in a list, one a line, each once; blanks may be part of them."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: is not text in UTF-8 ({error})") from error
    return list(dict.fromkeys(line for line in lines if line))


def _xml_files(folder: Path) -> list[Path]:
    found = (sorted((folder / name).glob("*.xml")) for name in _FOLDERS)
    return next((files for files in found if files), [])


def _picture(found: VocFile, file: Path, pictures: dict[str, list[Path]]) -> Path:
    """The picture of an XML file: that which it names, or else of the same name as it."""
    named = found.file_name.replace("\\", "/").rpartition("/")[2]
    for name in (named, file.stem):
        candidates = pictures.get(name, [])
        if len(candidates) > 1:
            raise DataError(
                f"{file}: {name} may be {candidates[0]} or {candidates[1]}: remove one of them"
            )
        if candidates:
            return candidates[0]
    raise DataError(f"{file}: names the picture {found.file_name!r}, which is nowhere there")


def _labelled(found: VocFile, file: Path, picture: Path, first: float) -> LabelledPicture:
    size = image_size(picture)
    if all(found.size) and found.size != size:
        raise DataError(
            f"{file}: states {found.size[1]}x{found.size[0]} (width x height), but {picture} is "
            f"{size[1]}x{size[0]}"
        )
    objects = []
    for place, one in enumerate(found.objects, start=1):
        box = one.box(first)
        if not (box[2] > 0 and box[3] > 0):
            raise DataError(
                f"{file}: object {place} ({one.name}): has width {box[2]:g} and height "
                f"{box[3]:g}: both must be positive"
            )
        objects.append(LabelledObject(one.name, box, crowd=one.difficult))
    return LabelledPicture(picture, size, objects)
