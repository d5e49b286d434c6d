"""Exported detectors as files: written in one of four formats, and read back as detectors.

Each file also holds the config and the categories, so that it is all that a `Predictor` needs.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from yacs.config import CfgNode

from detlite.config import ConfigError, config_from
from detlite.conversion.checkpoint.files import CheckpointError
from detlite.inference.predictor import READERS
from detlite.modeling import build_model
from detlite.modeling.detection_model import DetectionModel

from .exported_program import ProgramDetector, Run, export_program
from .onnx import onnx_run, write_onnx
from .openvino import OpenVINOPart, from_bytes, openvino_parts, to_bytes

# Formats, and how the names of their files end.
SUFFIXES = {"pt2": ".pt2", "aoti": ".pt2", "onnx": ".onnx", "openvino": ".openvino"}
_NAME = "detlite"  # of what is stored beside a graph
_ALIGNMENT = 32  # pixels: sides of images that every graph takes


def exportable(cfg: CfgNode, model: DetectionModel) -> CfgNode:
    """The config by which a model is exported; pads the model's images accordingly.

    Raises:
        ConfigError: a model that is not on the CPU.
    """
    if model.device.type != "cpu":
        raise ConfigError("a model is exported for the CPU: set MODEL.DEVICE cpu")
    step = math.lcm(max(1, cfg.DATALOADER.SIZE_DIVISIBILITY), _ALIGNMENT)
    model.normalizer.divisibility = step
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.DEVICE, cfg.DTYPE, cfg.DATALOADER.SIZE_DIVISIBILITY = "cpu", "float32", step
    cfg.freeze()
    return cfg


def check_target(path: Path, kind: str) -> None:
    """Checks, before anything is computed, that a file of a format can be written.

    Raises:
        ConfigError: the name ends otherwise, or its folder is not there.
    """
    if path.suffix != SUFFIXES[kind]:
        raise ConfigError(f"{path}: a file of the format {kind} must end in {SUFFIXES[kind]}")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}")


def write_exported(path: Path, kind: str, cfg: CfgNode, model: DetectionModel) -> None:
    """Writes a detector; the file appears as a whole or not at all.

    Args:
        path: its name ends as SUFFIXES says.
        kind: a key of SUFFIXES.
        cfg: from `exportable`.
        model: that the config describes; for "openvino" what `to_openvino` gives.

    Raises:
        ConfigError: see `check_target`; or a package is not installed; or the config asks for
            several views of a picture, of which a program sees one.
        CheckpointError: the file cannot be written.
    """
    check_target(path, kind)
    if cfg.TEST.BBOX_AUG.ENABLED and kind != "openvino":
        raise ConfigError(
            f"TEST.BBOX_AUG.ENABLED must be False: a file of the format {kind} looks at a picture "
            "in one view; say so, or export to the format openvino"
        )
    note = json.dumps({"config": cfg.dump(), "categories": model.categories})
    writers: dict[str, Callable[[Path, str, DetectionModel], None]] = {
        "pt2": _write_pt2,
        "aoti": _write_aoti,
        "onnx": write_onnx,
        "openvino": _write_openvino,
    }
    # The compilers want the ending too.
    temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        writers[kind](temporary, note, model)
        os.replace(temporary, path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written ({error})") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_exported(path: str | Path, opts: Sequence[Any] = ()) -> tuple[CfgNode, DetectionModel]:
    """The config and the detector of a file that `write_exported` wrote.

    A package of AOTInductor holds machine code, which is run: open those alone that you trust.

    Args:
        opts: overrides of the config, alternating keys and values, which the graph does not know.

    Raises:
        CheckpointError: a file that is missing, damaged or of another kind.
        ConfigError: a package that is not installed, or an override that cannot be used.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    try:
        if path.suffix == ".onnx":
            return _program(path, opts, *onnx_run(path))
        if path.suffix == ".openvino":
            return _read_openvino(path, opts)
        if path.suffix == ".pt2":
            return _program(path, opts, *_pt2_run(path))
    except (ConfigError, CheckpointError):
        raise
    except Exception as error:  # of whichever reader
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{path}: is no file of `detlite export`, or is damaged ({reason})"
        ) from error
    raise CheckpointError(
        f"{path}: exported models end in {', '.join(sorted(set(SUFFIXES.values())))}; a checkpoint "
        "is loaded by Predictor.from_checkpoint"
    )


READERS.register("exported")(read_exported)


def _build(path: Path, opts: Sequence[Any], note: str) -> tuple[CfgNode, DetectionModel]:
    """The model that a file's note describes, with fresh weights."""
    content = json.loads(note)
    config = yaml.safe_load(content["config"])
    config.pop("IMPORTS", None)  # a file of weights must not run code
    cfg = config_from(config, path, opts)
    model = build_model(cfg)
    model.categories = content["categories"]
    return cfg, model.eval()


def _program(
    path: Path, opts: Sequence[Any], note: str, run: Run
) -> tuple[CfgNode, DetectionModel]:
    cfg, model = _build(path, opts, note)
    return cfg, ProgramDetector(model, run, batch=1)


def _write_pt2(path: Path, note: str, model: DetectionModel) -> None:
    torch.export.save(export_program(model, batch=1), path, extra_files={_NAME: note})


def _write_aoti(path: Path, note: str, model: DetectionModel) -> None:
    torch._inductor.aoti_compile_and_package(
        export_program(model, batch=1),
        package_path=str(path),
        inductor_configs={"aot_inductor.metadata": {_NAME: note}},
    )


def _pt2_run(path: Path) -> tuple[str, Run]:
    with zipfile.ZipFile(path) as archive:
        compiled = any("/aotinductor/" in name for name in archive.namelist())
    if compiled:
        package = torch._inductor.aoti_load_package(str(path))
        return package.get_metadata()[_NAME], package
    extra = {_NAME: ""}
    module = torch.export.load(path, extra_files=extra).module()

    def run(*inputs: Tensor) -> Any:
        with torch.no_grad():
            return module(*inputs)

    return extra[_NAME], run


def _write_openvino(path: Path, note: str, model: DetectionModel) -> None:
    parts = openvino_parts(model)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{_NAME}.json", note)
        archive.writestr("parts.json", json.dumps({n: p.results for n, p in parts.items()}))
        for name, part in parts.items():
            xml, weights = to_bytes(part.graph)
            archive.writestr(f"{name}.xml", xml)
            archive.writestr(f"{name}.bin", weights)


def _read_openvino(path: Path, opts: Sequence[Any]) -> tuple[CfgNode, DetectionModel]:
    with zipfile.ZipFile(path) as archive:
        cfg, model = _build(path, opts, archive.read(f"{_NAME}.json").decode())
        results = json.loads(archive.read("parts.json"))
        for part in model.requires_grad_(False).exportable_parts():
            xml, weights = (archive.read(f"{part.name}.{kind}") for kind in ("xml", "bin"))
            part.replace(OpenVINOPart(from_bytes(xml, weights), results[part.name]))
    return cfg, model
