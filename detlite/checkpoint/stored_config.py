"""The config that belongs to a checkpoint: the stored one, with the convention of the weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from yacs.config import CfgNode

from detlite.checkpoint.assumptions import log_assumptions
from detlite.checkpoint.files import Checkpoint
from detlite.config import ConfigError, config_from, parse_yaml
from detlite.config.extensions import COPIES
from detlite.config.key import convention_fields
from detlite.conventions import CONVENTIONS
from detlite.errors import CheckpointError


def config_of(checkpoint: Checkpoint, opts: Sequence[Any] = ()) -> CfgNode:
    """Return the config stored in a checkpoint, with overrides; log what it assumes."""
    stored = checkpoint_config(checkpoint)
    if stored is None:
        names = shorten(", ".join(checkpoint.model), 100, placeholder=" ...")
        problem = f"has no config, so the architecture of its weights ({names}) is unknown"
        if checkpoint.backbone_only:
            problem = "has no config: it is a classifier, from which training can start"
        raise CheckpointError(
            f"{checkpoint.path}: {problem}. If detlite has the model, name the YAML file of its "
            "config as well (`config`, or --config)"
        )
    # Loading weights must not run code, so the caller names the modules to import.
    stored.pop("IMPORTS", None)
    with explain_imports(checkpoint.config, checkpoint.path, "IMPORTS" in opts[::2]):
        cfg = apply_convention(config_from(stored, checkpoint.path, opts), checkpoint)
    log_assumptions(cfg, checkpoint, opts)
    return cfg


@contextmanager
def explain_imports(config: str, path: Path, given: bool) -> Iterator[None]:
    """Say in a ConfigError that the IMPORTS in a file with weights are ignored.

    Args:
        config: the config stored in the file `path`.
        given: True if the caller names other IMPORTS, so that they may not be the reason.
    """
    try:
        yield
    except ConfigError as error:
        stored = parse_yaml(config, path)
        imports = stored.get("IMPORTS") if isinstance(stored, dict) else None
        if not imports or given:
            raise
        names = [str(name) for name in (imports if isinstance(imports, list) else [imports])]
        copies = {name: path.parent / COPIES / Path(name).name for name in names}
        files = [str(copy) if copy.is_file() else name for name, copy in copies.items()]
        raise ConfigError(
            f"{error}. IMPORTS of {path} are ignored, because weights must not run code. If you "
            f"trust their code, add the override IMPORTS [{shorten(', '.join(files), 1000)}]"
        ) from error


def checkpoint_config(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Parse the config that is stored in a checkpoint, if any."""
    try:
        config = parse_yaml(checkpoint.config, checkpoint.path)
    except ConfigError as error:
        raise CheckpointError(f"the config in {error}") from error
    return config if isinstance(config, dict) else None


def apply_convention(cfg: CfgNode, checkpoint: Checkpoint) -> CfgNode:
    """Return the config with the convention of the weights.

    Fields in MODEL.CONVENTION_OVERRIDE of the config take precedence over the checkpoint's.

    Raises:
        ConfigError: another convention, or an unknown epsilon of the norm.
        CheckpointError: an unknown convention.
    """
    path, convention = checkpoint.path, checkpoint.convention
    if not convention:
        return cfg
    if convention not in CONVENTIONS:
        raise CheckpointError(
            f"{path}: has the unknown convention {convention!r}; known: {', '.join(CONVENTIONS)}"
        )
    if problem := convention_fields([f for f in checkpoint.override if not f.endswith("=?")]):
        raise CheckpointError(f"{path}: its override must be {problem}")
    if cfg.MODEL.CONVENTION not in ("", convention):
        raise ConfigError(
            f"MODEL.CONVENTION is {cfg.MODEL.CONVENTION}, but the weights in {path} were trained "
            f"with {convention}: remove the key, and set single fields by MODEL.CONVENTION_OVERRIDE"
        )
    assignments = (*checkpoint.override, *cfg.MODEL.CONVENTION_OVERRIDE)
    fields = {assignment.partition("=")[0]: assignment for assignment in assignments}
    if "frozen_norm_eps=?" in fields.values():
        raise ConfigError(
            f"{path}: the epsilon of its frozen batch norm is unknown, because a state dict does "
            "not contain it, and detections depend on it. In torchvision it is 0 if the model was "
            "created with weights=COCO_V1, also if it was trained further, and 1e-5 otherwise. Set "
            "MODEL.CONVENTION_OVERRIDE to ['frozen_norm_eps=0.0'] or ['frozen_norm_eps=1e-05']"
        )
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.CONVENTION = convention
    cfg.MODEL.CONVENTION_OVERRIDE = tuple(fields.values())
    cfg.freeze()
    return cfg
