"""Predictions: the detections of an image, and methods that draw and convert them."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image

from detlite.data.loading.image_io import DEFAULT_OPTIONS, ImageOptions
from detlite.registry import Registry

from .images import ImageInput, load_image

# Functions that draw or convert predictions.
EXPORTERS: Registry[Callable[..., Any]] = Registry(
    "exporter",
    on_demand={
        "image": "detlite.apps.drawing.detections",
        "pandas": "detlite.apps.exporters",
        "supervision": "detlite.apps.exporters",
    },
)
_NAMED_CATEGORIES = 5  # in the repr


class Prediction(dict[str, Any]):
    """Detections of an image, as a dict with the keys that `Predictor` describes.

    Attributes:
        source: the image that was passed to the predictor.
        options: how a file is read.
        categories: of the model.
        threshold: the score from which objects are drawn.
    """

    source: ImageInput | None = None
    options: ImageOptions = DEFAULT_OPTIONS
    categories: Sequence[dict[str, Any]] = ()
    threshold: float = 0.0

    def __repr__(self) -> str:
        height, width = self["size"]
        counts = Counter(self["names"])
        named = counts.most_common(_NAMED_CATEGORIES)
        found = ", ".join(f"{count} {name}" for name, count in named) or "no objects"
        more = ", ..." if len(counts) > _NAMED_CATEGORIES else ""
        kinds = ", ".join(key for key in ("boxes", "masks", "keypoints") if key in self)
        return f"Prediction({width} x {height} pixels: {found}{more}; {kinds})"

    def plot(self, image: ImageInput | None = None, **options: Any) -> Image.Image:
        """Draw the objects on the image, or on `image`; see `apps.drawing.draw_detections`."""
        source = self.source if image is None else image
        if source is None:
            raise ValueError("this prediction does not know its image: call plot(image)")
        pixels = load_image(source, self.options)
        return EXPORTERS.get("image")(pixels, self, self.categories, **options)

    def show(self, image: ImageInput | None = None, **options: Any) -> None:
        """Show what `plot` draws in the image viewer of the system."""
        self.plot(image, **options).show()

    def to_pandas(self) -> Any:
        """Convert to a `pandas.DataFrame`, see `apps.exporters.to_pandas`."""
        return EXPORTERS.get("pandas")(self)

    def to_supervision(self) -> Any:
        """Convert to `supervision.Detections`, see `apps.exporters.to_supervision`."""
        return EXPORTERS.get("supervision")(self)

    def extra_rows(self) -> list[dict[str, list[float]]]:
        """Return the outputs of TEST.EXTRA_OUTPUTS for each detection, as lists for JSON."""
        names = [name for name in ("class_scores", "features") if name in self]
        columns = [self[name].tolist() for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
