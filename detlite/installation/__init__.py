"""What is installed and what it can do: facts of the machine, and operators beside references."""

from .machine import Resources, devices, facts, problems, resources
from .operators import operator_errors

__all__ = ["Resources", "devices", "facts", "operator_errors", "problems", "resources"]
