"""`detlite browse`: training's own first images, objects without anchors, and the page itself."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from detlite.apps.cli.main import main
from detlite.apps.drawing import draw_detections
from detlite.config import load_config
from detlite.data import build_train_dataset, build_train_loader

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


@pytest.fixture
def config(make_run, tmp_path):
    """A config of the data set of `make_run`."""

    def write(anchors="[8, 16, 32, 64, 128]"):
        file = tmp_path / "mine.yaml"
        file.write_text(CONFIG.format(data=tmp_path / "data", anchors=anchors))
        return file

    return write


def browse(file, tmp_path, *arguments):
    page = tmp_path / "browse.html"
    assert main(["browse", "--config", str(file), "--output", str(page), *map(str, arguments)]) == 0
    return page.read_text(), page


def test_the_images_are_those_of_training(config, tmp_path):
    text, _ = browse(config(), tmp_path, "--count", 6)
    shown = re.findall(r'src="data:image/jpeg;base64,([^"]+)" alt="Objects of ([^"]+)"', text)
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
        assert abs(page - np.asarray(drawn).astype(int)).mean() < 8  # of JPEG


def test_the_same_page_again_and_another_seed(config, tmp_path):
    first = browse(config(), tmp_path, "--count", 4)[0]
    assert browse(config(), tmp_path, "--count", 4)[0] == first
    assert browse(config(), tmp_path, "--count", 4, "SEED", 7)[0] != first


def test_anchors_that_do_not_fit_are_named(config, tmp_path):
    def weak(text):
        found = re.search(r"Of (\d+) objects (\d+) have no anchor, and (\d+) only", text)
        return [int(number) for number in found.groups()]

    fine, _ = browse(config(), tmp_path, "--count", 12)
    bad, _ = browse(config("[300, 310, 320, 330, 340]"), tmp_path, "--count", 12)
    assert weak(fine)[0] == weak(bad)[0] > 10
    assert sum(weak(bad)[1:]) == weak(bad)[0]
    assert sum(weak(fine)[1:]) < sum(weak(bad)[1:])
    assert "That is much" in bad
    assert "no anchor for: " in bad
    assert weak(bad)[1] > 0
    assert bad.count('<td class="number worse">none</td>') == weak(bad)[1]


def test_errors(config, tmp_path, capsys):
    for arguments, message in (
        (["--count", "0"], "--count is 0"),
        (["DATASETS.TRAIN", "()"], "DATASETS.TRAIN is empty"),
        (["INPUT.MIN_SIZE_TRIAN", "3"], "INPUT.MIN_SIZE_TRAIN"),
    ):
        page = tmp_path / "no.html"
        assert main(["browse", "--config", str(config()), "--output", str(page), *arguments]) == 2
        assert message in capsys.readouterr().err
        assert not page.exists()


def test_in_a_browser(config, tmp_path, open_page):
    _, file = browse(config(), tmp_path, "--count", 8)
    page = open_page(file)
    figures = page.locator("#shown > figure")
    assert figures.count() == 8
    options = page.locator("select option").all_text_contents()
    for option in options[1:]:
        page.locator("select").select_option(option)
        shown = [one for one in figures.all() if one.is_visible()]
        assert {one.get_attribute("data-kind") for one in shown} == {option}
        assert f"{len(shown)} of 8 shown" in page.locator("[data-count]").text_content()


def test_a_retinanet(config, tmp_path):
    retinanet = ["MODEL.META_ARCHITECTURE", "RetinaNet", "MODEL.BACKBONE.CONV_BODY",
                 "R-18-FPN-RETINANET", "MODEL.RETINANET.NUM_CLASSES", "4", "MODEL.MASK_ON", "False",
                 "MODEL.RETINANET.ANCHOR_SIZES", "(300, 300, 300, 300, 300)"]  # fmt: skip
    text, _ = browse(config(), tmp_path, "--count", 4, *retinanet)
    assert "Choose MODEL.RETINANET.ANCHOR_SIZES" in text
