"""The recipes build, and their runs are correct."""

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from detlite.config import load_config
from detlite.config.loading import flatten
from detlite.modeling.build import build_model

pytest.importorskip("timm", reason="timm is not installed")
from benchmarks.recipes import run as program
from benchmarks.recipes.recipes import RECIPES


@pytest.fixture(scope="module")
def base_text(shared_coco_dataset, tmp_path_factory) -> str:
    """The config of `detlite init` for a small dataset, as if one category were rare."""
    (annotations, images), folder = shared_coco_dataset, tmp_path_factory.mktemp("init")
    file = folder / program.BASE
    file.write_text(program.init_config(annotations, annotations, images, folder))
    return load_config(file, ["DATALOADER.REPEAT_THRESHOLD", 0.05]).dump()


@pytest.fixture
def base(base_text, tmp_path) -> Path:
    file = tmp_path / program.BASE
    file.write_text(base_text)
    return file


@pytest.mark.slow
def test_every_recipe_builds_and_changes_something(base):
    loaded = load_config(base)
    cfg = load_config(base, ["DATALOADER.REPEAT_THRESHOLD", 0.0, "MODEL.MASK_ON", False])
    skipped = {name for name, recipe in RECIPES.items() if not recipe.applies_to(cfg)}
    assert skipped == {"no_repeat", "copy_paste", "masks_56"}
    lite0 = dict(flatten(program.recipe_config(base, "lite0", program.schedule(40))))
    built = set()  # most recipes change only the training
    for name, recipe in RECIPES.items():
        cfg = program.recipe_config(base, name, program.schedule(40))
        changed = {key for key, value in flatten(cfg) if lite0[key] != value}
        cfg.defrost()
        cfg.MODEL.DEVICE = "meta"
        if str(cfg.MODEL) not in built:
            built.add(str(cfg.MODEL))
            with torch.device("meta"):
                build_model(cfg)
        assert recipe.applies_to(loaded)
        assert changed <= recipe.overrides(loaded).keys(), name
        assert bool(changed) == (name != "lite0"), name
        assert cfg.SOLVER.MAX_ITER == 40
        assert (cfg.SOLVER.WARMUP_ITERS == 0) == (name == "no_warm_up")


def write_complete_run(folder: Path, seed: int, box: float, mask: float | None) -> None:
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"recipe": "", "seed": seed, "steps": 300}))
    metrics = {"bbox": {"AP": box, "AP50": box + 0.2}}
    if mask is not None:
        metrics["segm"] = {"AP": mask}
    (folder / "evaluation.json").write_text(json.dumps(metrics))


def test_complete_runs_are_skipped_and_interrupted_ones_resume(base, monkeypatch):
    commands = []

    def record(command, **_):
        commands.append(command[3:5])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(program.subprocess, "run", record)
    args = program._parser().parse_args(["train", "--output", str(base.parent)])
    folder = program.run_folder(base.parent, "lite0", 0)
    write_complete_run(folder, 0, 0.3, None)
    plan = {"recipe": "lite0", "seed": 0, "steps": 300}
    plan["base"] = hashlib.sha256(base.read_bytes()).hexdigest()
    (folder / "plan.json").write_text(json.dumps(plan))
    assert program.run(args, "lite0", 0, 300) == 0
    assert program.run(args, "lite0", 0, 200) == 1
    assert not commands
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "metrics.jsonl").touch()  # the file by which `detlite train` recognizes a run
    assert program.run(args, "lite0", 0, 30) == 0
    assert commands == [["train", "--resume"]]


def test_table_of_short_runs(base_text, tmp_path, capsys):
    folder = tmp_path / "2_minutes_1_busy/seed0"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(base_text)
    (folder / "evaluation.json").write_text(json.dumps({"bbox": {"AP": 0.25}}))
    (folder / "metrics.jsonl").write_text('{"iteration": 20}\n{"iteration": 37}\n')
    words = ["short", "--output", str(tmp_path), "--short-minutes", "2", "--busy", "1"]
    assert program.main(words) == 0
    cfg = load_config(folder / "config.yaml")
    sizes = f"{cfg.SOLVER.IMS_PER_BATCH} | {cfg.INPUT.MIN_SIZE_TEST}"
    assert f"| 2 | 0 | {sizes} | 37 | 25.0 |" in capsys.readouterr().out
