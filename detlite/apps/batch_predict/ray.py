"""Detection as a stage of Ray Data, which deals with machines that are slow or lost.

import ray
from detlite.apps.batch_predict.ray import Detect

pictures = ray.data.from_items([{"picture": name} for name in names])
workers = ray.data.ActorPoolStrategy(size=4)
found = pictures.map_batches(
    Detect, fn_constructor_args=["model_final.pth"], batch_size=64, compute=workers, num_gpus=1
)
found.write_parquet("found")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detlite.config import ConfigError

from .batch_predict import load_predictor, predict_each
from .result_files import COLUMNS, category_names, parquet_schema, rows_of


class Detect:
    """Maps batches {"picture": paths or addresses [N]} to a pyarrow table, a row for each picture.

    Its columns: picture; problem, why it could not be read, else null; height and width in pixels;
    objects, a list of what was found, with the columns of Parquet's files (`formats.COLUMNS`) from
    category_id on.

    Args:
        weights, threshold, opts: as those of `detlite predict`.
        batch_size: so many pictures of like size are run together.
    """

    def __init__(
        self, weights: str, threshold: float = 0.5, opts: Sequence[Any] = (), batch_size: int = 1
    ) -> None:
        try:
            import pyarrow as pa
        except ImportError as error:
            raise ConfigError(f"needs pyarrow ({error}): pip install 'detlite[ray]'") from error
        self.predictor = load_predictor(weights, threshold, opts)
        self.batch_size = batch_size
        self.names = category_names(self.predictor.categories)
        first = list(COLUMNS).index("category_id")  # what is before it is the picture's
        found = list(parquet_schema())[first:]
        columns = {"picture": pa.string(), "problem": pa.string(), "height": pa.int32(),
                   "width": pa.int32(), "objects": pa.list_(pa.struct(found))}  # fmt: skip
        self.schema = pa.schema(list(columns.items()))

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        import pyarrow as pa

        pictures = [str(name) for name in batch["picture"]]
        done = predict_each(self.predictor, pictures, range(len(pictures)), self.batch_size)
        rows = [
            {**one["image"], "picture": name, "problem": one.get("problem"),
             "objects": list(rows_of([one], self.names))}
            for name, one in zip(pictures, done, strict=True)
        ]  # fmt: skip
        return pa.Table.from_pylist(rows, self.schema)
