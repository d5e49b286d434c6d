"""Train each project for some steps, and use its run as any other."""

import ast
import shutil

import pytest
import torch

import detlite
from detlite import modeling
from detlite.inference.options import InferenceOptions, View, build_options

SMALL = {
    "MODEL.RESNETS.STEM_OUT_CHANNELS": 8,
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 8,
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": 64,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES": 3,
    "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": 16,
    "INPUT.MIN_SIZE_TRAIN": (64,),
    "INPUT.MIN_SIZE_TEST": 64,
    "SOLVER.IMS_PER_BATCH": 2,
    "SOLVER.LOG_PERIOD": 1,
    "DATASETS.TRAIN": ["data"],
    "DATASETS.TEST": ["data"],
    "DTYPE": "float32",
    "TEST.REPORT": False,
}
# Each project with the losses that it adds or replaces.
PROJECTS = {
    "fcos": {"loss_classifier", "loss_box", "loss_centerness"},
}


@pytest.fixture
def train(repo_root, shared_coco_dataset, tmp_path):
    """Return a function that trains a project in a folder of the test."""
    annotations, images = shared_coco_dataset
    entry = {"name": "data", "annotations": str(annotations), "images": str(images)}

    def run(name, steps, resume=False):
        config = repo_root / "projects" / name / f"{name}.yaml"
        overrides = {**SMALL, "SOLVER.MAX_ITER": steps, "DATASETS.CATALOG": [entry]}
        return detlite.train(
            config, output_dir=tmp_path / "run", overrides=overrides, resume=resume
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", PROJECTS)
def test_projects_train_resume_and_predict(name, train, repo_root, tmp_path):
    train(name, 1)
    result = train(name, 2, resume=True)
    assert "bbox" in result.metrics["data"]
    moved = tmp_path / "moved"
    shutil.move(result.output_dir, moved)
    predictor = detlite.Predictor.from_checkpoint(moved / "model_final.pth")
    image = torch.randint(0, 256, (3, 90, 120), dtype=torch.uint8)
    config = repo_root / "projects" / name / f"{name}.yaml"
    predictor_config = detlite.load_config(config, ["INPUT.MIN_SIZE_TEST", 64])
    small = View(64, 96)
    for options in (
        build_options(predictor_config),
        InferenceOptions(small, views=(small, View(64, 96, flip=True))),
        InferenceOptions(small, tile=64),
    ):
        detect = detlite.Predictor(predictor.model, options=options)
        assert detect(image.permute(1, 2, 0).numpy())["boxes"].shape[1] == 4


@pytest.mark.parametrize("name", PROJECTS)
def test_padding_does_not_change_losses(name, repo_root):
    config = repo_root / "projects" / name / f"{name}.yaml"
    model = detlite.build_model(
        detlite.load_config(config, [v for kv in SMALL.items() for v in kv])
    )
    images = [torch.rand(3, 64, 96), torch.rand(3, 72, 64)]
    boxes = torch.tensor([[4.0, 6, 30, 40], [35, 20, 60, 50]])
    targets = [{"boxes": boxes[:n], "labels": torch.tensor([1, 2])[:n]} for n in (2, 1)]
    found = []
    for model.static_shapes in (False, True):
        torch.manual_seed(0)
        found.append(model.train()(images, targets))
    torch.testing.assert_close(found[0], found[1])
    assert found[0].keys() == PROJECTS[name]


@pytest.mark.parametrize("name", [*PROJECTS, "attributes"])
def test_projects_use_public_names(name, repo_root):
    """Check that every name of detlite is documented, and that the file is short."""
    text = (repo_root / "projects" / name / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 150
    docs = "".join(page.read_text() for page in (repo_root / "docs").glob("*.md"))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("detlite"):
            for alias in node.names:
                public = alias.name in modeling.__all__ or f"{node.module}.{alias.name}" in docs
                assert public or f"::: {node.module}\n" in docs, alias.name
        private = isinstance(node, ast.Attribute) and node.attr.startswith("_")
        assert not private or node.attr == "__init__"
