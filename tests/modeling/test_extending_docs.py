"""Run the Python examples of docs/extending.md."""

import importlib
import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from detlite import build_model
from detlite.config import ConfigError
from detlite.data import build_dataset
from detlite.evaluation import Results
from detlite.evaluation.evaluators import build_evaluators
from detlite.registry import Registry
from tests.builders import coco_content, coco_detection, coco_object

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
# Module, registry and config key of each row of the table.
ROWS = re.findall(r"\| `(detlite[\w.]*)\.([A-Z_]+)` \| .*?`([\w.*:]+)`", PAGE)
PACKAGE = Path(__file__).parents[2] / "detlite"
# Modules that import or define a registry.
REGISTRY_MODULES = [
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for file in PACKAGE.rglob("*.py")
    if re.search(r"\] = Registry\(", file.read_text(encoding="utf-8"))
]
# Registries through which the core finds the applications, or these their formats.
INTERNAL = {
    "CONFIG_BUILDERS",
    "CONVERTERS",
    "DRAWINGS",
    "ENGINES",
    "FORMATS",
    "PREDICTION_WRITERS",
    "FINDERS",
    "READERS",
    "SOURCES",
}
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


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
    assert len(BLOCKS) == 4


def test_table_lists_every_registry(tiny_config):
    listed = {}
    for module, name, key in ROWS:
        listed[id(getattr(importlib.import_module(module), name))] = name
        node = tiny_config()
        for part in key.replace("ROI_*", "ROI_BOX").split(".") if key.isupper() else ():
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
        ("mobilenet-FPN", ["MODEL.BACKBONE.CONV_BODY", "mobilenet-FPN"]),
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


def test_dataset_of_a_table(run_block, tiny_config, tmp_path):
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "photos" / "a.png")
    (tmp_path / "train.csv").write_text("a.png,40,30,cat,1,2,10,20\na.png,40,30,dog,5,5,4,4\n")
    entry = {"name": "train", "type": "boxes-table", "table": "train.csv", "images": "photos"}
    options = ["DATASETS.ROOT", str(tmp_path), "DATASETS.CATALOG", [entry], "MODEL.MASK_ON", False]
    cfg = tiny_config("IMPORTS", run_block("boxes-table"), *options)
    dataset = build_dataset(cfg, "train", train=True)
    _, target = dataset[0]
    assert target["boxes"].tolist() == [[1, 2, 11, 22], [5, 5, 9, 9]]
    assert [row["name"] for row in dataset.categories] == ["cat", "dog"]


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
