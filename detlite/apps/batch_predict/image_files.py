"""Entries of images, and the files that `detlite predict` writes for each of them.

They are drawn images, label images and copies.
"""

import shutil
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import compress
from pathlib import Path

from PIL import Image
from torch import Tensor

from detlite.apps.drawing.detections import draw_detections
from detlite.apps.prediction_files.measures import add_measures, write_label_image
from detlite.apps.prediction_files.writer import FORMATS, Entry, file_stem
from detlite.data.images.formats import open_image
from detlite.files.atomic_write import atomic_path, make_folder
from detlite.files.errors import DataError
from detlite.inference.inputs import is_any_url, split_page
from detlite.inference.predictor import Prediction, Predictor

from .predict_images import coco_objects
from .prediction_pipeline import predict_stream

_DRAWN, _LABEL_IMAGES, _COPIES = FOLDERS = "drawn", "label_images", "images"
_SUFFIXES = {"jpeg": ".jpg", "png": ".png", "tiff": ".tif"}
_JPEG_QUALITY = 90


class ImageFiles:
    """Makes entries and writes the files of images, with the options of `detlite predict`."""

    def __init__(self, options: Namespace, predictor: Predictor) -> None:
        self.options, self.predictor = options, predictor
        self._copies = FORMATS.get(options.format).copies_images
        self.draws = options.draw != "none"
        used = self.draws, options.label_images, self._copies
        for name in compress(FOLDERS, used):
            make_folder(options.output / name)

    def file(self, folder: str, entry: Entry, suffix: str) -> Path:
        """Return a file of an image."""
        return Path(self.options.output, folder, f"{file_stem(entry)}{suffix}")

    def drawn_video(self, name: str, first_id: int) -> Path | None:
        """Return the file of the drawn video, or None if nothing is drawn."""
        entry = {"image": {"id": first_id, "file_name": name}}
        return self.file(_DRAWN, entry, ".mp4") if self.draws else None

    def draw(self, image: Tensor, prediction: Prediction) -> Image.Image:
        """Draw a prediction on its image uint8 [C, H, W]."""
        categories, tags = self.predictor.categories, self.options.labels
        return draw_detections(image, prediction, categories, 0, tags=tags)

    def predict(self, images: Sequence[str], ids: Sequence[int]) -> Iterator[Entry]:
        """Yield an entry for each path or URL, in order, and write the files of the images."""
        infos = []
        for image_id, name in zip(ids, images, strict=True):
            file, page = split_page(name)
            number = {} if page is None else {"page": page}
            infos.append({"id": image_id, "file_name": file, **number})

        def finish(index: int, image: Tensor, prediction: Prediction) -> Entry:
            return self.entry(infos[index], image, prediction)

        options = self.options
        stream = predict_stream(self.predictor, images, finish, options.batch_size, options.threads)
        for info, entry in zip(infos, stream, strict=True):
            if isinstance(entry, DataError):
                entry = {"image": info, "problem": str(entry)}
            yield entry

    def entry(self, info: Entry, image: Tensor, prediction: Prediction) -> Entry:
        """Write the files of an image uint8 [C, H, W], or a frame of a video, in any thread.

        Returns its entry, with `info` about the image.
        """
        options, predictor = self.options, self.predictor
        objects = coco_objects(info["id"], prediction, predictor.model.convention.keypoint_center)
        for obj, track_id in zip(objects, prediction.get("track_ids", ()), strict=False):
            obj["track_id"] = track_id
        if options.format == "measures":
            add_measures(objects, image.numpy())
        _, height, width = image.shape
        entry: Entry = {"image": {**info, "height": height, "width": width}, "objects": objects}
        if options.label_images:
            suffix = _SUFFIXES[options.label_images]
            write_label_image(self.file(_LABEL_IMAGES, entry, suffix), prediction)
        if self._copies:
            entry["image"]["copy"] = self._copy(entry, image).name
        if self.draws and "frame" not in info:
            file = self.file(_DRAWN, entry, _SUFFIXES[options.draw])
            _save(self.draw(image, prediction), file)
        return entry

    def _copy(self, entry: Entry, image: Tensor) -> Path:
        """Copy the file of an image; or write its pixels, if tools would see other ones."""
        name, info = entry["image"]["file_name"], entry["image"]
        if is_any_url(name) or {"page", "frame"} & info.keys() or self._is_turned(name):
            file = self.file(_COPIES, entry, ".png")
            _save(Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy()), file)
        else:
            file = self.file(_COPIES, entry, Path(name).suffix)
            with atomic_path(file) as temporary:
                shutil.copyfile(name, temporary)
        return file

    def _is_turned(self, name: str) -> bool:
        """Return True for a file whose EXIF orientation tools apply, but the model ignores."""
        options = self.predictor.image_options
        if options.exif_orientation:
            return False
        with open_image(name, options.max_pixels) as opened:
            return opened.orientation() != 1


def _save(image: Image.Image, file: Path) -> None:
    with atomic_path(file) as temporary:
        kind = "PNG" if file.suffix == ".png" else "JPEG"
        image.save(temporary, kind, quality=_JPEG_QUALITY)  # PNG ignores the quality
