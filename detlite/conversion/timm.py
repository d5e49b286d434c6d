"""timm: classifiers, used as backbones built by timm (`modeling/backbone/timm`)."""

from torch import Tensor

from .checkpoint_source import CheckpointSource, RawStateDict, StateDict

# Prefix of the names of a timm backbone in a detector.
TIMM_PREFIX = "backbone.body.net."

TIMM = CheckpointSource(
    name="timm",
    convention="",
    # Its models have no names in common, so the user must name this source.
    recognise=lambda _names: False,
    rules=[(r"^", TIMM_PREFIX)],
    configure=lambda *_: ({}, {}),
)


def as_timm_backbone(raw: RawStateDict) -> StateDict:
    """Rename the weights of a classifier for a timm backbone.

    Empty if some are arrays, or belong to the backbone of a detector.
    """
    for name, value in raw.items():
        if name.startswith("backbone.") or not isinstance(value, Tensor):
            return {}
    return TIMM.rename(raw)
