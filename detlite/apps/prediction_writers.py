"""Convert predictions for pandas and supervision.

See `evaluation.detection_results.coco_results` for COCO results, which FiftyOne and many other
tools import.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from detlite.apps.optional_packages import import_optional
from detlite.structures.masks.formats import to_bitmap
from detlite.structures.masks.rotated_box import area
from detlite.structures.object_fields import object_field

if TYPE_CHECKING:  # its methods call these functions
    from detlite.inference.prediction import Prediction


def to_pandas(prediction: "Prediction") -> Any:
    """Convert a prediction to a `pandas.DataFrame` with a row for each object.

    The columns are name, category_id, score, x1, y1, x2, y2, and, if predicted, area (of the mask,
    in pixels), and own fields with the values of results.json.
    """
    pandas = import_optional("pandas", "pandas")
    columns: dict[str, Any] = {
        "name": prediction["names"],
        "category_id": prediction["category_ids"],
        "score": prediction["scores"].numpy(),
    }
    columns |= dict(zip(("x1", "y1", "x2", "y2"), prediction["boxes"].numpy().T, strict=True))
    if "masks" in prediction:
        columns["area"] = [area(mask) for mask in prediction["masks"]]
    for name, values in prediction.extra_fields.items():
        columns[name] = [*map(object_field(name).write, values)]
    return pandas.DataFrame(columns)


def to_supervision(prediction: "Prediction") -> Any:
    """Convert a prediction to `supervision.Detections`.

    `class_id` is the label minus 1, an index into `predictor.categories`. `data` contains
    `class_name`, `category_id` and, if predicted, `keypoints` [N, P, 3], `class_scores`,
    `features` and own fields.
    """
    supervision = import_optional("supervision", "detlite[supervision]")
    data: dict[str, Any] = {
        "class_name": np.array(prediction["names"], dtype=str),
        "category_id": np.array(prediction["category_ids"], dtype=np.int64),
    }
    if "keypoints" in prediction:
        data["keypoints"] = prediction["keypoints"].numpy()
    data |= {name: values.numpy() for name, values in prediction.extra_fields.items()}
    masks = None
    if "masks" in prediction:
        size = prediction["size"]
        bitmaps = [to_bitmap(mask, *size) for mask in prediction["masks"]]
        masks = np.array(bitmaps, bool).reshape(-1, *size)
    return supervision.Detections(
        xyxy=prediction["boxes"].numpy(),
        mask=masks,
        confidence=prediction["scores"].numpy(),
        class_id=prediction["labels"].numpy() - 1,
        data=data,
    )
