"""Run the Python examples of docs/extending.md."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from detlite import build_model, optimize
from detlite.config import ConfigError
from detlite.data import build_dataset
from detlite.engine.solver import OPTIMIZERS, build_optimizer
from detlite.evaluation import Results
from detlite.evaluation.evaluators import build_evaluators
from detlite.files.errors import DataError
from detlite.modeling import BOX_LOSSES, POOLERS, SAMPLERS, Matcher, ProposalSampler
from detlite.ops import pyramid_roi_align
from detlite.registry import Registry
from tests.builders import coco_content, coco_detection, coco_object

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "extending.md").read_text(encoding="utf-8")
DETECTOR_PAGE = (DOCS / "write_a_detector.md").read_text(encoding="utf-8")
# Module, registry and config key of each row of the table.
ROWS = re.findall(r"\| `(detlite[\w.]*)\.([A-Z_]+)` \| .*?`([\w.*:]+)`", PAGE)
PACKAGE = Path(__file__).parents[2] / "detlite"
# Modules that import or define a registry.
REGISTRY_MODULES = [
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for file in PACKAGE.rglob("*.py")
    if re.search(r"\] = Registry\(", file.read_text(encoding="utf-8"))
]
# Registries through which a package finds its own implementations.
INTERNAL = {"ENGINES", "FORMATS"}
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE + DETECTOR_PAGE, re.DOTALL)


@pytest.fixture
def run_block(tmp_path):
    """Return a function that writes the block with a text to a file for IMPORTS."""

    def run(text: str) -> str:
        (block,) = (block for block in BLOCKS if text in block)
        path = tmp_path / f"example_{abs(hash(text))}.py"
        path.write_text(block)
        return str(path)

    return run


def test_every_block_is_tested_here():
    assert len(BLOCKS) == 8


def test_table_lists_every_registry(tiny_config):
    listed = {}
    for module, name, key in ROWS:
        listed[id(getattr(importlib.import_module(module), name))] = name
        node = tiny_config()
        key = key.replace("ROI_*", "ROI_BOX").replace("*", "RPN")
        for part in key.split(".") if key.isupper() else ():
            node = getattr(node, part)
    there = {
        id(value): name
        for module in REGISTRY_MODULES
        for name, value in vars(importlib.import_module(module)).items()
        if isinstance(value, Registry) and name not in INTERNAL
    }
    assert listed == there


@pytest.mark.parametrize(
    ("text", "opts"),
    [
        ("AveragedAlign", ["MODEL.ROI_BOX_HEAD.POOLER_TYPE", "AveragedAlign"]),
        ('register("mobilenet")', ["MODEL.BACKBONE.CONV_BODY", "mobilenet-FPN"]),
        ("FocalPredictor", ["MODEL.ROI_BOX_HEAD.PREDICTOR", "Focal"]),
        ("WeightedBoxHead", ["MODEL.META_ARCHITECTURE", "WeightedRCNN"]),
        ("PointDetector", ["MODEL.META_ARCHITECTURE", "PointDetector", "MODEL.MASK_ON", False]),
    ],
)
def test_example_trains_a_step_and_detects(run_block, tiny_config, make_batch, text, opts):
    cfg = tiny_config("IMPORTS", run_block(text), *opts)
    model = build_model(cfg).train()
    images, targets = make_batch(2, 1)
    losses = model(images, targets)
    sum(losses.values()).backward()
    assert all(torch.isfinite(loss) for loss in losses.values())
    model.static_shapes = True  # computes padding
    padded = model(images, targets)
    model.static_shapes = False
    assert all(torch.isfinite(loss) for loss in padded.values())
    assert len(model.eval()(images)) == 2
    assert len(optimize(model, "bfloat16").detect(images)) == 2


def test_parts_without_an_example(tiny_config, make_batch, monkeypatch):
    """Train with a pooler that has parameters, and an own box loss, optimizer and sampler."""

    class ScaledAlign(nn.Module):
        def __init__(self, cfg, channels):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(channels, 1, 1))

        def forward(self, maps, rois, size, scales, sampling, levels):
            return self.scale * pyramid_roi_align(
                maps, rois, size, scales, sampling, aligned=True, levels=levels
            )

    def distance(boxes, truth):
        return (boxes - truth).abs().mean(dim=-1)

    class EvenSampler(ProposalSampler):
        def draw(self, matched):
            index, drawn = super().draw(matched)
            return index, drawn & (index % 2 == 0)

    def build_even_sampler(cfg):
        return EvenSampler(16, 0.5, Matcher(0.5, 0.5))

    def build_adagrad(cfg, groups):
        return torch.optim.Adagrad(groups, lr=cfg.SOLVER.BASE_LR)

    added = [(POOLERS, ScaledAlign), (BOX_LOSSES, distance), (OPTIMIZERS, build_adagrad),
             (SAMPLERS, build_even_sampler)]  # fmt: skip
    for registry, builder in added:
        monkeypatch.setitem(registry._builders, "own", builder)
    keys = ["MODEL.ROI_BOX_HEAD.POOLER_TYPE", "MODEL.RPN.BOX_LOSS", "MODEL.ROI_BOX_HEAD.BOX_LOSS",
            "SOLVER.OPTIMIZER", "MODEL.ROI_HEADS.SAMPLER"]  # fmt: skip
    cfg = tiny_config(*(value for key in keys for value in (key, "own")))
    model = build_model(cfg).train()
    optimizer = build_optimizer(cfg, model)
    losses = model(*make_batch(2, 1))
    sum(losses.values()).backward()
    optimizer.step()
    assert isinstance(optimizer, torch.optim.Adagrad)
    assert isinstance(model.sampler, EvenSampler)
    pooler = model.roi_heads.box.feature_extractor.pooler
    assert (pooler.pool.scale != 1).all()


def test_own_keys(run_block, tiny_config):
    cfg = tiny_config("IMPORTS", run_block("declare_keys"), "DISTILL.LOSS", "mse")
    assert dict(cfg.DISTILL) == {"TEACHER": "", "TEMPERATURE": 2.0, "LOSS": "mse"}


def test_dataset_of_arrays(run_block, tiny_config, tmp_path):
    """Its objects are judged like those of files."""
    images = np.random.default_rng(0).integers(0, 255, (3, 30, 40), dtype=np.uint8)
    boxes = np.array([[1, 2, 10, 20], [5, 5, 4, 4], [3, 3, 9, 9]])
    np.savez(tmp_path / "train.npz", images=images, boxes=boxes, owners=[1, 1, 0])
    np.savez(
        tmp_path / "bad.npz", images=images, boxes=np.add(boxes, [50, 0, 0, 0]), owners=[1, 1, 0]
    )
    entries = [{"name": name, "type": "cells", "file": f"{name}.npz"} for name in ("train", "bad")]
    options = ["DATASETS.ROOT", str(tmp_path), "DATASETS.CATALOG", entries, "MODEL.MASK_ON", False]
    cfg = tiny_config("IMPORTS", run_block('"cells"'), *options)
    dataset = build_dataset(cfg, "train", train=True)
    assert dataset.image_ids == [1, 2]
    image, target = dataset[1]
    assert (image.numpy() == images[1]).all()
    assert target["boxes"].tolist() == [[1, 2, 11, 22], [5, 5, 9, 9]]
    assert [row["name"] for row in dataset.categories] == ["cell"]
    with pytest.raises(DataError, match=r"annotation 1 .*is outside the 40x30 image"):
        build_dataset(cfg, "bad", train=True)


def test_evaluator_of_counts(run_block, tiny_config, tmp_path):
    box = [1, 2, 10, 20]
    content = coco_content(
        [coco_object(box, image=n) for n in (1, 2)], (1, 2, 3, 4), (30, 40), ["cat"]
    )
    for image in content["images"]:
        Image.new("RGB", (40, 30)).save(tmp_path / image["file_name"])
    file = tmp_path / "val.json"
    entry = {"name": "val", "annotations": file.name, "images": ".", "evaluators": ["counts"]}
    options = ["DATASETS.ROOT", str(tmp_path), "DATASETS.CATALOG", [entry], "MODEL.MASK_ON", False]
    cfg = tiny_config("IMPORTS", run_block('"counts"'), *options)

    def prepared():
        file.write_text(json.dumps(content))
        dataset = build_dataset(cfg, "val", train=False)
        (evaluator,) = build_evaluators(cfg, dataset).values()
        evaluator.check(cfg, dataset)
        return evaluator, dataset

    evaluator, dataset = prepared()
    scores = [(1, 0.9), (1, 0.2), (2, 0.4), (4, 0.5)]
    rows = [coco_detection(box, score, image=image) for image, score in scores]
    assert evaluator.evaluate(cfg, dataset, Results.from_coco(rows)) == {"counts": {"right": 0.5}}
    content["categories"].append({"id": 2, "name": "dog"})
    with pytest.raises(ConfigError, match="val: can only count objects of one category"):
        prepared()
