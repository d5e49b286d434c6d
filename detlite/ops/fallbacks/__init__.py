"""Fallbacks of the operators for devices without compiled kernels (`detlite.ops.dispatch`)."""
