"""A config for a data set: statistics -> rules -> YAML with a reason for every key.

After nnU-Net (Isensee et al. 2021, doi 10.1038/s41592-020-01008-z): what can follow from the data
and the machine does, and the rest is fixed.
"""

from .configs import as_config, config_by_data, config_by_rules, config_by_weights
from .dataset_facts import Choice, Facts
from .rules import choose
from .statistics import SetStatistics, measure
from .time_budget import fit
from .yaml_text import config_text, places

__all__ = [
    "Choice",
    "Facts",
    "SetStatistics",
    "as_config",
    "choose",
    "config_by_data",
    "config_by_rules",
    "config_by_weights",
    "config_text",
    "fit",
    "measure",
    "places",
]
