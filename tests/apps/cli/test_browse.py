"""Test `detlite browse`: the images are those of training, and unmatched objects are named."""

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from detlite.apps.cli.main import main
from detlite.apps.drawing.detections import draw_detections
from detlite.apps.report.browse_page import anchor_head, best_overlaps
from detlite.config import load_config
from detlite.data import build_train_dataset, build_train_loader
from detlite.modeling import build_model

from .conftest import run_factory

CONFIG = """
_BASE_: _base_/from_scratch_fpn.yaml
DATASETS:
  ROOT: {data}
  CATALOG: [{{name: val set, annotations: val.json, images: images}}]
  TRAIN: [val set]
MODEL:
  MASK_ON: True
  RESNETS: {{NORM: BN, STEM_OUT_CHANNELS: 8, RES2_OUT_CHANNELS: 8, BACKBONE_OUT_CHANNELS: 16}}
  RPN: {{ANCHOR_SIZES: {anchors}}}
  ROI_BOX_HEAD: {{NUM_CLASSES: 4, MLP_HEAD_DIM: 16}}
INPUT: {{MIN_SIZE_TRAIN: [120, 160], MAX_SIZE_TRAIN: 200, BRIGHTNESS: 0.3}}
SOLVER: {{IMS_PER_BATCH: 4}}
DATALOADER: {{NUM_WORKERS: 0}}
"""


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Return the root folder of a dataset."""
    root = tmp_path_factory.mktemp("browse")
    run_factory(root)
    return root / "data"


@pytest.fixture
def config(data, tmp_path):
    """Return a function that writes the config of a training on the dataset."""

    def write(anchors="[8, 16, 32, 64, 128]"):
        file = tmp_path / "config.yaml"
        file.write_text(CONFIG.format(data=data, anchors=anchors))
        return file

    return write


def build_page(file, tmp_path, *arguments):
    page = tmp_path / "browse.html"
    assert main(["browse", "--config", str(file), "--output", str(page), *map(str, arguments)]) == 0
    return page.read_text()


def test_images_equal_the_training_images(config, tmp_path):
    text = build_page(config(), tmp_path, "--count", 6)
    shown = re.findall(r'src="data:image/jpeg;base64,([^"]+)" alt="(iteration [^"]+)"', text)
    assert len(shown) == 6
    cfg = load_config(config())
    dataset = build_train_dataset(cfg)
    batches = iter(build_train_loader(cfg, dataset))
    pairs = [pair for _ in range(2) for pair in zip(*next(batches), strict=True)]
    for number, ((data, caption), (image, target)) in enumerate(zip(shown, pairs, strict=False)):
        height, width = image.shape[-2:]
        assert caption.startswith(f"iteration {1 + number // 4}, image {target['image_id']}: ")
        assert f"{width} x {height} px, {len(target['labels'])} objects" in caption
        drawn = draw_detections(image, target, dataset.categories)
        drawn.thumbnail((460, 460), Image.Resampling.LANCZOS)
        page = np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))).astype(int)
        assert page.shape[:2] == (drawn.height, drawn.width)
        assert abs(page - np.asarray(drawn).astype(int)).mean() < 8  # tolerance for JPEG


def test_page_depends_only_on_the_seed(config, tmp_path):
    first, second, other = (
        build_page(config(), tmp_path, "--count", 1, "SEED", seed) for seed in (0, 0, 7)
    )
    assert first == second != other


@pytest.mark.parametrize(
    ("anchors", "opts", "node"),
    [
        ("[300, 310, 320, 330, 340]", (), "RPN"),
        ("[8, 16, 32, 64, 128]", (), None),
        ("[8]", ("MODEL.META_ARCHITECTURE", "RetinaNet", "MODEL.MASK_ON", "False",
                 "MODEL.BACKBONE.CONV_BODY", "R-18-FPN-RETINANET",
                 "MODEL.RETINANET.NUM_CLASSES", 4,
                 "MODEL.RETINANET.ANCHOR_SIZES", "(300, 300, 300, 300, 300)"), "RETINANET"),
    ],
)  # fmt: skip
def test_objects_without_anchors_of_their_size_are_listed(config, tmp_path, anchors, opts, node):
    """All objects if anchors are too large, and some of them otherwise."""
    text = build_page(config(anchors), tmp_path, "--count", 12, *opts)
    counts = re.search(r"Of (\d+) objects, (\d+) fit no anchor", text)
    objects, weak = map(int, counts.groups())
    assert text.count('<th scope="row">') == weak
    assert (weak == objects > 10) == bool(node)
    assert (f"Set MODEL.{node}.ANCHOR_SIZES" in text) == bool(node)


def test_overlaps_with_anchors(tiny_config):
    """A box that is an anchor has an IoU of 1; models with proposals have no anchors."""
    model, image = build_model(tiny_config()), torch.zeros(3, 90, 130, dtype=torch.uint8)
    anchor = model.rpn.anchor_generator([(s, s) for s in (32, 16, 8, 4, 2)])[2][:1] + 16
    overlaps = best_overlaps(model, image, torch.cat([anchor, anchor[:, [0, 1, 0, 1]] + 1]))
    assert overlaps.tolist() == pytest.approx([1, 0], abs=0.01)
    assert anchor_head(build_model(tiny_config("MODEL.LOAD_PROPOSALS", True))) is None


def test_invalid_arguments(config, tmp_path, error_of):
    page = tmp_path / "no.html"
    for arguments, message in (
        (["--count", "0"], "--count: 0: must be at least 1"),
        (["DATASETS.TRAIN", "()"], "DATASETS.TRAIN is empty"),
        (["INPUT.MIN_SIZE_TRIAN", "3"], "INPUT.MIN_SIZE_TRAIN"),
    ):
        assert message in error_of("browse", "--config", config(), "--output", page, *arguments)
    assert not page.exists()
