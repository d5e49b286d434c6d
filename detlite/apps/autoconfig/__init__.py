"""A config for a dataset: statistics -> rules -> YAML with a reason for each key.

The approach is that of nnU-Net (Isensee et al. 2021, doi 10.1038/s41592-020-01008-z): derive from
the data and the machine what can be derived, and fix the rest.
"""

from .configs import (
    as_config,
    choices_by_weights,
    config_by_data,
    config_by_rules,
    config_by_weights,
)
from .dataset_facts import Choice, DatasetFacts
from .rules import choose
from .statistics import DatasetStatistics, compute_statistics
from .time_budget import fit_to_minutes
from .yaml_text import config_text, dataset_choices

__all__ = [
    "Choice",
    "DatasetFacts",
    "DatasetStatistics",
    "as_config",
    "choices_by_weights",
    "choose",
    "compute_statistics",
    "config_by_data",
    "config_by_rules",
    "config_by_weights",
    "config_text",
    "dataset_choices",
    "fit_to_minutes",
]
