"""Train the project `attributes` for some steps, and follow its field to every result."""

import json

import pytest
import torch

import detlite
from detlite.inference.options import InferenceOptions, View

SMALL = {
    "DTYPE": "float32",
    "INPUT.MIN_SIZE_TRAIN": (64,),
    "INPUT.MIN_SIZE_TEST": 64,
    "MODEL.RESNETS.STEM_OUT_CHANNELS": 8,
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 8,
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": 16,
    "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": 16,
    "MODEL.ROI_MASK_HEAD.CONV_LAYERS": (8,),
    "MODEL.ROI_HEADS.SCORE_THRESH": 0.0,
    "SOLVER.IMS_PER_BATCH": 2,
    "SOLVER.LOG_PERIOD": 1,
    "TEST.REPORT": False,
}
NAMES = {"large", "wide", "tall", "thin"}


def test_losses_of_a_batch(repo_root):
    """Train the head on an image with an object and one without."""
    file = repo_root / "projects" / "attributes" / "attributes.yaml"
    model = detlite.build_model(detlite.load_config(file, [*sum(SMALL.items(), ())])).train()
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
    overrides |= SMALL | {"DATASETS.TRAIN": ["train"], "DATASETS.TEST": ["test"]}
    config, output = folder / "attributes.yaml", tmp_path / "run"
    for steps in (2, 3):
        changed = overrides | {"SOLVER.MAX_ITER": steps}
        result = detlite.train(config, output_dir=output, overrides=changed, resume=steps == 3)
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss_attributes"] for row in rows if "loss_attributes" in row]
    assert len(losses) == 3
    assert all(0 < loss < 2 for loss in losses)
    assert result.metrics["test"]["attributes"].keys() == NAMES
    found = json.loads((output / "results_test.json").read_text())
    assert found
    assert all(row["attributes"].keys() == NAMES for row in found)
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
