"""Diagnosis of an installation: system information, problems, and checks of the operators."""

from .machine import Resources, devices, find_problems, plural, resources, system_info
from .operator_checks import operator_errors

__all__ = ["Resources", "devices", "find_problems", "operator_errors", "plural", "resources",
           "system_info"]  # fmt: skip
