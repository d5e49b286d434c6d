"""Write detectors to files in three formats, and load them again.

Each file also contains the config and the categories, so that `Predictor` needs only the file.
"""

import json
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.checkpoint.contents import read_categories
from detlite.checkpoint.stored_config import explain_imports
from detlite.config import ConfigError, changed, config_from
from detlite.config.files import parse_yaml
from detlite.errors import CheckpointError
from detlite.files.atomic_write import atomic_path
from detlite.files.errors import short_reason
from detlite.files.reading import open_stored_zip
from detlite.modeling import build_model
from detlite.modeling.detection_model import DetectionModel

from .exported_program import ALIGNMENT, ProgramDetector, Run, export_program
from .limited_run import run_limited
from .onnx import onnx_run, write_onnx
from .openvino import example_calls, openvino_parts, part_from_bytes, to_bytes

SUFFIXES = {"onnx": ".onnx", "openvino": ".openvino", "pt2": ".pt2"}
_METADATA_KEY = "detlite"


def prepare_export(cfg: CfgNode, model: DetectionModel) -> CfgNode:
    """Set the padding of a model on the CPU, and return its config for the exported file."""
    if model.device.type != "cpu":
        raise ConfigError(
            f"only a model on the CPU can be exported, not on {model.device}: set MODEL.DEVICE cpu"
        )
    step = math.lcm(max(1, cfg.DATALOADER.SIZE_DIVISIBILITY), ALIGNMENT)
    model.normalizer.divisibility = step
    values = {"MODEL.DEVICE": "cpu", "DTYPE": "float32", "DATALOADER.SIZE_DIVISIBILITY": step}
    return changed(cfg, values)


def check_output_path(path: Path, file_format: str) -> None:
    """Raise a ConfigError if the suffix does not match the format, or the folder is missing."""
    suffix = SUFFIXES[file_format]
    if path.suffix != suffix:
        raise ConfigError(f"{path}: a file of the format {file_format} must end in {suffix}")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: the folder {path.parent} does not exist")


def write_exported(path: Path, file_format: str, cfg: CfgNode, model: DetectionModel) -> None:
    """Write a detector to a file atomically, in a format of SUFFIXES.

    `cfg` is the result of `prepare_export`. For the format openvino, `model` is the result of
    `to_openvino`.

    Raises:
        ConfigError: a package is missing, the path is invalid, or the config enables test-time
            augmentation, which only openvino supports.
        CheckpointError: the file cannot be written.
    """
    check_output_path(path, file_format)
    if cfg.TEST.BBOX_AUG.ENABLED and file_format != "openvino":
        raise ConfigError(
            f"TEST.BBOX_AUG.ENABLED must be False for the format {file_format}, which has no "
            "test-time augmentation: set it to False, or export to the format openvino"
        )
    metadata = json.dumps({"config": cfg.dump(), "categories": model.categories})
    writers = {"onnx": write_onnx, "openvino": _write_openvino, "pt2": _write_pt2}
    try:
        with atomic_path(path) as temporary:
            writers[file_format](temporary, metadata, model)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error


def read_exported(
    path: str | Path, opts: Sequence[Any] = (), trust: bool = False
) -> tuple[CfgNode, DetectionModel]:
    """Return the config and the detector of a file written by `write_exported`.

    Args:
        opts: config overrides, alternating keys and values. They do not change the graph.
        trust: also load .pt2 files, which can run any code.

    Raises:
        CheckpointError: the file is missing, damaged, of another format, or needs `trust`.
        ConfigError: a package is missing, or an override is invalid.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    if path.suffix not in SUFFIXES.values():
        problem = f"{path}: exported models end in .onnx, .openvino or .pt2"
        raise CheckpointError(f"{problem}; load a checkpoint with Predictor.from_checkpoint")
    if path.suffix == ".pt2" and not trust:
        raise CheckpointError(
            f"{path}: refused, because torch runs code that a .pt2 file contains. If you trust its "
            "author, add --trust (in Python Predictor(file, trust=True)). Files of the formats "
            "onnx and openvino contain no code"
        )
    try:
        if path.suffix == ".openvino":
            cfg, model = _read_openvino(path, opts)
        else:
            read = onnx_run if path.suffix == ".onnx" else _pt2_run
            metadata, run = read(path)
            cfg, model = _build(path, opts, metadata)
            model = ProgramDetector(model, run, (read, path.absolute()))
        # A graph that does not match the config should fail here, not in the first prediction.
        model.detect(*_example(model))
        return cfg, model
    except (ConfigError, CheckpointError):
        raise
    except Exception as error:  # each library raises different types
        problem = f"{path}: damaged, or not written by `detlite export` ({short_reason(error)})"
        raise CheckpointError(problem) from error


def _build(path: Path, opts: Sequence[Any], metadata: str) -> tuple[CfgNode, DetectionModel]:
    """Build the model that the metadata of a file describes, with random weights."""
    content = json.loads(metadata)
    categories = read_categories(content["categories"])
    config = parse_yaml(content["config"], path)
    config.pop("IMPORTS", None)  # loading weights must not run code
    with explain_imports(content["config"], path, "IMPORTS" in opts[::2]):
        cfg = config_from(config, path, opts)
        model = build_model(cfg, path.stat().st_size)
    model.use_memory_format()  # as when it was exported
    model.categories = categories
    return cfg, model.eval()


def _example(model: DetectionModel) -> tuple[list[Tensor], list[Tensor] | None]:
    """Return a small image, and a proposal if the model needs some."""
    proposals = [torch.tensor([[8.0, 8.0, 40.0, 40.0]])] if model.takes_proposals else None
    return [torch.linspace(0, 1, model.channels * 4096).reshape(-1, 64, 64)], proposals


def _write_pt2(path: Path, metadata: str, model: DetectionModel) -> None:
    with path.open("wb") as file:  # given a path, torch requires the suffix .pt2
        torch.export.save(export_program(model), file, extra_files={_METADATA_KEY: metadata})


def _pt2_run(path: Path) -> tuple[str, Run]:
    """Return the metadata of a file of the format pt2, and a function that runs it."""
    metadata = {_METADATA_KEY: ""}
    module = torch.export.load(path, extra_files=metadata).module()
    return metadata[_METADATA_KEY], torch.no_grad()(module)


def _write_openvino(path: Path, metadata: str, model: DetectionModel) -> None:
    parts = openvino_parts(model)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{_METADATA_KEY}.json", metadata)
        for name, part in parts.items():
            xml, weights = to_bytes(part.graph)
            archive.writestr(f"{name}.xml", xml)
            archive.writestr(f"{name}.bin", weights)


def _read_openvino(path: Path, opts: Sequence[Any]) -> tuple[CfgNode, DetectionModel]:
    with open_stored_zip(path) as archive:
        cfg, model = _build(path, opts, archive.read(f"{_METADATA_KEY}.json").decode())
        run_limited(path)
        example = model.requires_grad_(False).prepare(*_example(model))
        for part, _, results in example_calls(model, *example):
            xml, weights = (archive.read(f"{part.name}.{kind}") for kind in ("xml", "bin"))
            part.replace(part_from_bytes(xml, weights, results))
    return cfg, model
