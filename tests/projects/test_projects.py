"""Train each project for some steps, and use its run as any other."""

import ast
import copy
import json
import shutil

import pytest
import torch

import detlite
from detlite import modeling
from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.files import save_checkpoint
from detlite.conventions import convention_of
from detlite.inference.options import InferenceOptions, View, build_options
from detlite.modeling.compilation import compile_losses
from tests.builders import NARROW

SMALL = NARROW | {
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": 64,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES": 3,
    "SOLVER.IMS_PER_BATCH": 2,
    "SOLVER.LOG_PERIOD": 1,
    "DATASETS.TRAIN": ["data"],
    "DATASETS.TEST": ["data"],
    "DTYPE": "float32",
    "TEST.REPORT": False,
}
TWO_STAGES = {"loss_objectness", "loss_rpn_box", "loss_classifier", "loss_box"}
# The losses of each project.
PROJECTS = {
    "bifpn": TWO_STAGES,
    "distillation": TWO_STAGES | {"loss_distillation"},
    "domain_adaptation": TWO_STAGES | {"loss_domain"},
    "double_heads": TWO_STAGES,
    "fcos": {"loss_classifier", "loss_box", "loss_centerness"},
}
CATEGORIES = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]


@pytest.fixture
def project(repo_root, tmp_path):
    """Return a function that returns the config file of a project, and keys of a small model."""

    def find(name):
        file, keys = repo_root / "projects" / name / f"{name}.yaml", dict(SMALL)
        if name == "distillation":
            teacher_file, teacher_keys = find("bifpn")
            cfg = detlite.load_config(teacher_file, teacher_keys)
            weights, convention = detlite.build_model(cfg).state_dict(), convention_of(cfg).name
            teacher = tmp_path / "teacher.pth"
            save_checkpoint(Checkpoint(teacher, weights, CATEGORIES, cfg.dump(), convention))
            keys["MODEL.DISTILLATION.TEACHER"] = str(teacher)
        return file, keys

    return find


@pytest.mark.parametrize("name", PROJECTS)
def test_losses_with_and_without_padding(name, project):
    file, keys = project(name)
    model = detlite.build_model(detlite.load_config(file, keys)).train()
    images = [torch.rand(3, 64, 96), torch.rand(3, 72, 64)]
    boxes = torch.tensor([[4.0, 6, 30, 40], [35, 20, 60, 50]])
    targets = [{"boxes": boxes[:n], "labels": torch.tensor([1, 2])[:n]} for n in (2, 0)]
    model(images, targets)
    losses = []
    for model.static_shapes in (False, True):
        torch.manual_seed(0)
        losses.append(model(images, targets))
        assert losses[-1].keys() == PROJECTS[name]
        assert all(torch.isfinite(loss) for loss in losses[-1].values())
    if name == "fcos":  # nothing is drawn at random
        torch.testing.assert_close(*losses)
    sum(losses[0].values()).backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROJECTS)
def test_compiled_losses_are_the_same(name, project):
    file, keys = project(name)
    model = detlite.build_model(detlite.load_config(file, keys)).train()
    model.static_shapes = model.reads_foreground = True
    compiled = compile_losses(copy.deepcopy(model), backend="eager")
    images, boxes = [torch.rand(3, 64, 96)], torch.tensor([[4.0, 6, 30, 40], [35, 20, 60, 50]])
    targets = [{"boxes": boxes, "labels": torch.tensor([1, 2])}]
    losses = []
    for one in (model, compiled):
        torch.manual_seed(0)
        losses.append(one(images, targets))
    torch.testing.assert_close(*losses)


@pytest.mark.slow
def test_bifpn_is_exported_with_any_size(project):
    file, keys = project("bifpn")
    backbone = detlite.build_model(detlite.load_config(file, keys)).backbone.eval()
    sides = {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    program = torch.export.export(backbone, (torch.rand(1, 3, 128, 192),), dynamic_shapes=(sides,))
    pixels = torch.rand(1, 3, 160, 288)
    torch.testing.assert_close(program.module()(pixels), backbone(pixels))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROJECTS)
def test_run(name, project, shared_coco_dataset, tmp_path):
    """Train, resume, move the folder, test, and predict with views and tiles."""
    annotations, images = shared_coco_dataset
    file, keys = project(name)
    keys["DATASETS.CATALOG"] = [
        {"name": "data", "annotations": str(annotations), "images": str(images)}
    ]
    folder, moved = tmp_path / "run", tmp_path / "moved"
    for steps, resume in ((1, False), (2, True)):
        overrides = {**keys, "SOLVER.MAX_ITER": steps}
        detlite.train(file, output_dir=folder, overrides=overrides, resume=resume)
    shutil.move(folder, moved)
    checkpoint = moved / "model_final.pth"
    result = detlite.evaluate(checkpoint, config=moved / "config.yaml", output_dir=tmp_path)
    assert "bbox" in result.metrics["data"]
    extensions = [str(path) for path in (moved / "extensions").glob("*.py")]
    image = torch.randint(0, 256, (90, 120, 3), dtype=torch.uint8).numpy()
    views = View(64, 96), View(64, 96, flip=True)
    for options in (
        build_options(detlite.load_config(moved / "config.yaml")),
        InferenceOptions(views[0], views=views),
        InferenceOptions(views[0], tile=64),
    ):
        model = detlite.load_checkpoint(checkpoint, {"IMPORTS": extensions}).model
        assert detlite.Predictor(model, options=options)(image)["boxes"].shape[1] == 4


@pytest.mark.parametrize("name", [*PROJECTS, "attributes"])
def test_names_are_public(name, repo_root):
    """Check that every name of detlite is documented, and that the file is short."""
    text = (repo_root / "projects" / name / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 150
    docs = "".join(page.read_text() for page in (repo_root / "docs").glob("*.md"))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("detlite"):
            names = {alias.name for alias in node.names}
            public = {*modeling.__all__} if node.module == "detlite.modeling" else set()
            if f"::: {node.module}\n" not in docs:
                assert str(node.module) in docs, node.module
                assert all(name in docs for name in names - public), node.module
        private = isinstance(node, ast.Attribute) and node.attr.startswith("_")
        assert not private or node.attr == "__init__"


# ---- attributes: a field of objects, which is followed to every result

ATTRIBUTES = {
    **{key: value for key, value in SMALL.items() if "DATASETS" not in key and "NUM" not in key},
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": 16,
    "MODEL.ROI_MASK_HEAD.CONV_LAYERS": (8,),
    "MODEL.ROI_HEADS.SCORE_THRESH": 0.0,
}
ATTRIBUTE_NAMES = {"large", "wide", "tall", "thin"}


def test_losses_of_attributes(repo_root):
    """Train the head on an image with an object and one without."""
    file = repo_root / "projects" / "attributes" / "attributes.yaml"
    model = detlite.build_model(detlite.load_config(file, ATTRIBUTES)).train()
    boxes, masks = torch.tensor([[4.0, 6, 30, 40]]), torch.ones(1, 64, 96, dtype=torch.bool)
    target = {"boxes": boxes, "labels": torch.ones(1, dtype=torch.int64), "masks": masks}
    target["attributes"] = torch.tensor([[1.0, 0, 1, 0]])
    targets = [target, {name: value[:0] for name, value in target.items()}]
    losses = model([torch.rand(3, 64, 96) for _ in targets], targets)
    assert 0 < losses["loss_attributes"] < 2
    losses["loss_attributes"].backward()
    assert all(p.grad is not None for p in model.roi_heads.attributes.parameters())


@pytest.mark.slow
def test_attributes_are_trained_measured_and_predicted(repo_root, tmp_path):
    folder = repo_root / "projects" / "attributes"
    shapes = {"type": "shapes", "path": "shapes", "seed": 1}
    catalog = [
        shapes | {"name": "train", "split": "train", "images": 8, "fields": ["attributes"]},
        shapes | {"name": "test", "split": "test", "images": 4, "evaluators": ["attributes"]},
    ]
    overrides = {"DATASETS.ROOT": str(tmp_path), "DATASETS.CATALOG": catalog}
    overrides |= ATTRIBUTES | {"DATASETS.TRAIN": ["train"], "DATASETS.TEST": ["test"]}
    config, output = folder / "attributes.yaml", tmp_path / "run"
    for steps in (2, 3):
        changed = overrides | {"SOLVER.MAX_ITER": steps}
        result = detlite.train(config, output_dir=output, overrides=changed, resume=steps == 3)
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss_attributes"] for row in rows if "loss_attributes" in row]
    assert len(losses) == 3
    assert all(0 < loss < 2 for loss in losses)
    assert result.metrics["test"]["attributes"].keys() == ATTRIBUTE_NAMES
    found = json.loads((output / "results_test.json").read_text())
    assert found
    assert all(row["attributes"].keys() == ATTRIBUTE_NAMES for row in found)
    data = {}
    for name, split in (("data", "train"), ("test_data", "test")):
        (shapes_folder,) = (tmp_path / "shapes").glob(f"{split}-*")
        data[name] = shapes_folder / "annotations.json", shapes_folder / "images"
    overrides = ATTRIBUTES | {"SOLVER.MAX_ITER": 1}
    own = detlite.train(config, **data, output_dir=tmp_path / "own", overrides=overrides)
    assert own.metrics["test"]["attributes"].keys() == ATTRIBUTE_NAMES
    again = detlite.evaluate(
        own.weights, config=config, data=data["test_data"], overrides=overrides
    )
    assert again.metrics == own.metrics
    imports = ["IMPORTS", [str(folder / "attributes.py")]]
    predictor = detlite.Predictor.from_checkpoint(output / "model_final.pth", imports)
    image = torch.randint(0, 256, (3, 90, 120), dtype=torch.uint8)
    small, mirrored = View(64, 96), View(64, 96, flip=True)
    for options in (
        InferenceOptions(small),
        InferenceOptions(small, views=(small, mirrored)),
        InferenceOptions(small, tile=64),
    ):
        prediction = detlite.Predictor(predictor.model, options=options)(image)
        assert len(prediction["boxes"]) > 0
        assert prediction["attributes"].shape == (len(prediction["boxes"]), 4)
        assert ((prediction["attributes"] > 0) & (prediction["attributes"] < 1)).all()
