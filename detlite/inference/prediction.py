"""Images in any form, and their predictions, with methods that draw and convert them."""

import io
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from detlite.data.images.pillow import pillow_pixels
from detlite.data.images.pixels import ImageOptions, pixels_to_tensor
from detlite.data.images.reading import read_image
from detlite.data.images.sources import DECODE_ERRORS, ImageBytes, ImageSource, Pixels
from detlite.data.remote.remote_path import RemotePath
from detlite.data.transforms.resize import size_of
from detlite.evaluation.detection_results import categories_of, paste_detections
from detlite.files.download import fetch, is_url
from detlite.files.errors import DataError, short_repr
from detlite.files.retry import without_secrets
from detlite.modeling.detector import Detector
from detlite.structures.instances import Detections
from detlite.structures.masks.rle import draw_rle
from detlite.structures.masks.rotated_box import rotated_box
from detlite.structures.object_fields import RESERVED

from .inputs import data_of, is_any_url, is_camera, is_video_name, split_page
from .options import UNMEASURED_THRESHOLD

# Also a URL, and a file opened in binary mode.
ImageInput = (
    str | Path | bytes | bytearray | memoryview | IO[bytes] | Image.Image | np.ndarray | Tensor
)

_NAMED_CATEGORIES = 5  # in the repr


@dataclass(frozen=True)
class LoadedImage:
    """An original image uint8 [C, H, W], and the network input made from it."""

    original: Tensor
    network_input: Tensor

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the original image."""
        return size_of(self.original)


def load_image(image: ImageInput, options: ImageOptions, page: int | None = None) -> Tensor:
    """Read or convert an image to a tensor uint8 [C, H, W]; errors as for `Predictor`."""
    if isinstance(image, str):
        named, page = _named(image, page)
        return read_image(named, options=options, page=page)
    if hasattr(image, "read"):
        image = _content_of(image)
    if isinstance(image, bytearray | memoryview):
        image = bytes(image)
    if isinstance(image, Path | bytes):
        return read_image(image, options=options, page=page)
    rgb = "RGB, " * (options.channels == 3)
    if isinstance(image, Image.Image):
        name = f"PIL image of mode {image.mode}"
        try:  # Pillow decodes an opened file only now
            upright = ImageOps.exif_transpose(image) if options.exif_orientation else image
            pixels = pillow_pixels(upright)
        except DECODE_ERRORS as error:
            raise DataError(f"{name}: the image is damaged or truncated ({error})") from error
        return pixels_to_tensor(pixels, options, name)
    if isinstance(image, np.ndarray):
        if np.ma.is_masked(image):
            raise ValueError(
                "the array masks pixels: replace them by values, as in array.filled(0)"
            )
        array = image[:, :, None] if image.ndim == 2 else image
        fits = array.ndim == 3 and array.shape[2] in (1, 3, options.channels)
        known = options.value_range or array.dtype.str[1:] in ("b1", "u1", "u2", "f2", "f4", "f8")
        if not (fits and known):
            raise ValueError(
                f"an array must be {rgb}uint8, uint16 or float [H, W, {options.channels}], or gray "
                f"[H, W]: got {image.dtype} {list(image.shape)}. Other types need INPUT.VALUE_RANGE"
            )
        if array.dtype.kind == "f" and array.size and not options.value_range:
            _check_unit_range(array)
            array = np.rint(array * 255).astype(np.uint8)
        return pixels_to_tensor(Pixels(array), options, "array")
    if not isinstance(image, Tensor):
        raise TypeError(
            "an image must be a path, a file, bytes, a PIL image, an array or a tensor: got "
            f"{type(image).__name__}"
        )
    is_float = image.is_floating_point()
    fits = image.shape[:-2] == (options.channels,) and image.numel() > 0
    if not (fits and (is_float or image.dtype == torch.uint8)):
        actual = f"{str(image.dtype).removeprefix('torch.')} {list(image.shape)}"
        raise ValueError(
            f"a tensor must be {rgb}uint8 or float [{options.channels}, H, W] with pixels: got "
            f"{actual}"
        )
    if is_float:
        _check_unit_range(image)
        return (image.detach() * 255).round().to(torch.uint8)
    return image.clone()  # the caller may write the next frame into this memory


def _named(name: str, page: int | None) -> tuple[ImageSource, int | None]:
    """Return the image of a name, see `inputs`, and its page from 0. Raises DataError."""
    if (content := data_of(name)) is not None:
        return ImageBytes(content, short_repr(name)), page
    if is_video_name(name) and not is_camera(name):
        raise DataError(
            f"{without_secrets(name)}: is a video: pass its frames one by one, or use `detlite "
            "predict`"
        )
    file, number = split_page(name)
    page = page if number is None else number - 1
    if is_url(file):
        return ImageBytes(fetch(file), without_secrets(file)), page
    return (RemotePath(file) if is_any_url(file) else file), page


def _check_unit_range(image: np.ndarray | Tensor) -> None:
    """Raise a ValueError unless the values of an array or tensor of floats are in 0..1."""
    low, high = float(image.min()), float(image.max())
    if not (low >= 0 and high <= 1):  # NaN, too
        raise ValueError(
            f"an image of floats must be in 0..1, and its values are from {low:.4g} to {high:.4g}: "
            "scale it, or convert it to uint8 in 0..255"
        )


def _content_of(file: Any) -> bytes:
    """Read an opened file from its start, as Pillow does."""
    with suppress(AttributeError, OSError):  # it may not support it
        file.seek(0)
    content = None if isinstance(file, io.TextIOBase) else file.read()
    if not isinstance(content, bytes):
        raise TypeError("an image file must be opened in binary mode: open(path, 'rb')")
    return content


class Prediction(dict[str, Any]):
    """Detections of an image, as a dict with the keys that `Predictor` describes.

    Its length is the number of detections.

    Attributes:
        image: the image uint8 [C, H, W], if a `Predictor` was called with it.
        source: the path or URL that it was read from, if any.
        categories: of the model.
        threshold: minimum score of objects that are drawn.
    """

    image: Tensor | None = None
    source: str | Path | None = None
    categories: Sequence[dict[str, Any]] = ()
    threshold: float = UNMEASURED_THRESHOLD

    def __len__(self) -> int:
        return len(self["scores"])

    def __repr__(self) -> str:
        height, width = self["size"]
        counts = Counter(self["names"])
        found = ", ".join(f"{n} {name}" for name, n in counts.most_common(_NAMED_CATEGORIES))
        found = found or f"no objects with scores of at least {self.threshold:g}"
        more = ", ..." if len(counts) > _NAMED_CATEGORIES else ""
        kinds = ", ".join(key for key in ("boxes", "masks", "keypoints") if key in self)
        return f"Prediction({width} x {height} pixels: {found}{more}; {kinds})"

    def plot(self, **options: Any) -> Image.Image:
        """Draw the objects on the image; see `apps.drawing.draw_detections` for the options."""
        if self.image is None:
            raise ValueError("this prediction does not contain its image: call the predictor")
        from detlite.apps.drawing.detections import draw_detections  # imports matplotlib

        return draw_detections(self.image, self, self.categories, **options)

    def show(self, **options: Any) -> None:
        """Show what `plot` draws in the image viewer of the system."""
        self.plot(**options).show()

    def to_pandas(self) -> Any:
        """Convert to a `pandas.DataFrame`, see `apps.prediction_writers.to_pandas`."""
        from detlite.apps.prediction_writers import to_pandas  # needs an optional package

        return to_pandas(self)

    def to_supervision(self) -> Any:
        """Convert to `supervision.Detections`, see `apps.prediction_writers.to_supervision`."""
        from detlite.apps.prediction_writers import to_supervision  # needs an optional package

        return to_supervision(self)

    def rotated_boxes(self) -> Tensor:
        """Return the smallest rectangles around the masks, float32 [N, 5] of (x, y, width, height,
        angle in degrees); see `structures.masks.rotated_box`."""
        return torch.tensor([rotated_box(mask) for mask in self["masks"]]).reshape(-1, 5)

    @property
    def extra_fields(self) -> dict[str, Tensor]:
        """Own fields and the outputs of TEST.EXTRA_OUTPUTS [N, ...], by name."""
        return {name: value for name, value in self.items() if name not in RESERVED}


def to_prediction(
    detections: Detections, loaded: LoadedImage, model: Detector, rle: bool
) -> Prediction:
    """Map the detections of a model to the original image, and paste their masks."""
    size, convention = loaded.size, model.convention
    detections = detections.to("cpu")
    boxes, scores = detections.boxes.float(), detections.scores.float()
    detections = replace(detections, boxes=boxes, scores=scores)
    detections = detections.rescale(size_of(loaded.network_input), size, convention)
    categories = categories_of(detections.labels, model.categories)
    prediction = Prediction(
        size=size,
        **detections.public_fields(),
        category_ids=[category["id"] for category in categories],
        names=[category["name"] for category in categories],
    )
    prediction.categories = model.categories
    rles = paste_detections(detections, size, convention, model.mask_threshold)
    if rles is not None and rle:
        prediction["masks"] = rles
    elif rles is not None:
        prediction["masks"] = bitmaps = torch.zeros((len(rles), *size), dtype=torch.bool)
        for bitmap, mask in zip(bitmaps.numpy(), rles, strict=True):
            bitmap[:] = draw_rle(mask["counts"], *size)
    return prediction
