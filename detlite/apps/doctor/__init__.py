"""What is installed and what it can do: facts of the machine, and operators beside references."""

from .machine import Resources, counted, devices, facts, problems, resources
from .operator_checks import operator_errors

__all__ = ["Resources", "counted", "devices", "facts", "operator_errors", "problems", "resources"]
