"""How fast detlite is: its operators and the whole, torchvision's in turn, on the same input.

Every case is one row of medians. torchvision always gets the input that it likes best.

To add cases of operators, write a function that yields them and name it in `GROUPS` of
`measure.py`.
"""

from .data.evaluation import benchmark_evaluation
from .data.index import benchmark_index
from .data.loading import benchmark_data
from .models.inference import Inference, benchmark_model
from .models.scaling import benchmark_scaling, plot_scaling
from .models.training import Training, benchmark_train, write_trace
from .operators.fallback import PlainRow, benchmark_plain
from .operators.measure import Row, benchmark_ops

__all__ = [
    "Inference",
    "PlainRow",
    "Row",
    "Training",
    "benchmark_data",
    "benchmark_evaluation",
    "benchmark_index",
    "benchmark_model",
    "benchmark_ops",
    "benchmark_plain",
    "benchmark_scaling",
    "benchmark_train",
    "plot_scaling",
    "write_trace",
]
