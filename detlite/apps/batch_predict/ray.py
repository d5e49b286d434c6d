"""Detection as a stage of Ray Data, which handles slow and lost machines; docs/predicting.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from detlite.apps.optional_packages import import_optional

from .predict_images import load_predictor, predict_images
from .result_files import COLUMNS, category_names, parquet_schema, to_rows


class Detect:
    """Maps batches {"image": paths or URLs [N]} to a pyarrow table with a row for each image.

    Its columns: image; problem, why it could not be read, or null; height and width in pixels; and
    objects, a list of detections with the columns of `result_files.COLUMNS` from category_id on.
    The arguments are the same as for `detlite predict`.
    """

    def __init__(
        self,
        weights: str,
        threshold: float | None = None,
        opts: Sequence[Any] = (),
        batch_size: int = 1,
        trust: bool = False,
    ) -> None:
        pa = import_optional("pyarrow", "detlite[ray]")
        self.predictor = load_predictor(weights, threshold, opts, trust=trust)
        self.batch_size = batch_size
        self.names = category_names(self.predictor.categories)
        object_fields = list(parquet_schema())[list(COLUMNS).index("category_id") :]
        columns = {"image": pa.string(), "problem": pa.string(), "height": pa.int32(),
                   "width": pa.int32(), "objects": pa.list_(pa.struct(object_fields))}  # fmt: skip
        self.schema = pa.schema(list(columns.items()))

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        import pyarrow as pa

        images = [str(name) for name in batch["image"]]
        entries = predict_images(self.predictor, images, range(len(images)), self.batch_size)
        rows = [
            {**entry["image"], "image": name, "problem": entry.get("problem"),
             "objects": list(to_rows([entry], self.names))}
            for name, entry in zip(images, entries, strict=True)
        ]  # fmt: skip
        return pa.Table.from_pylist(rows, self.schema)
