"""What is installed and what it can do: facts of the machine, and operators beside references."""

from .machine import devices, facts, problems
from .operators import operator_errors

__all__ = ["devices", "facts", "operator_errors", "problems"]
