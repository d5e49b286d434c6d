"""Render HTML pages as single files that contain their images."""

import base64
import io
from typing import Any

from PIL import Image

from detlite.data.errors import DataError


def render(template: str, **values: Any) -> str:
    """Render a template of `templates/` to HTML; all texts are escaped.

    Raises:
        DataError: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader
    except ImportError as error:
        raise DataError("a page needs jinja2: pip install 'detlite[report]'") from error
    environment = Environment(
        autoescape=True,
        loader=PackageLoader("detlite.apps.drawing"),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    return environment.get_template(template).render(**values)


def percent(value: float | None, digits: int = 1, sign: str = "") -> str:
    """Format a fraction in percent; "n/a" for None."""
    return "n/a" if value is None else f"{100 * value:{sign}.{digits}f}"


def jpeg(image: Image.Image, quality: int = 80) -> str:
    """Encode an image as a data URI for the `src` attribute of an `img` element."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
