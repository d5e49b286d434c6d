"""The compiled kernels; every name here is the operator `torch.ops.detlite.<name>` itself.

The operators on RoIs have two overloads: the default one takes one map, `maps` those of a pyramid.
"""

from torch._ops import OpOverloadPacket

def __getattr__(name: str) -> OpOverloadPacket: ...
