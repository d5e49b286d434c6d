"""Tiling: each object in a tiled image is detected once and completely."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from detlite.apps.prediction_files.outlines import outlines
from detlite.config import ConfigError, load_config
from detlite.conventions import CONVENTIONS
from detlite.inference import tiling
from detlite.inference.build import build_detector
from detlite.inference.image_detector import ResizingDetector
from detlite.inference.options import InferenceOptions, View, build_options
from detlite.inference.predictor import Predictor
from detlite.inference.tiling import Tile, TiledDetector, cut_tiles, merge
from detlite.inference.tta import AugmentedDetector
from detlite.modeling.build import build_model
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections
from tests.builders import FakeDetector, write_weights
from tests.modeling.family import assert_same_objects

CELLS = 28


class BrightParts(FakeDetector):
    """Detects each bright part of an image whose sides have at least `min_side` pixels.

    The label is 1, or 2 without green. Scores increase with the area.
    """

    categories = ({"id": 1, "name": "white"}, {"id": 2, "name": "magenta"})
    postprocess = SimpleNamespace(
        suppression=SimpleNamespace(iou_thresh=0.5, views_iou_thresh=None, class_agnostic=False)
    )

    def __init__(self, min_side=4):
        super().__init__()
        self.min_side = min_side

    def _detect(self, image):
        bright = image[0] > 127
        rows, masks = [], [torch.zeros(0, CELLS, CELLS)]
        for polygon in outlines(bright.numpy()):
            x1, y1, x2, y2 = (int(v) for v in (*polygon.min(axis=0), *polygon.max(axis=0)))
            if min(x2 - x1, y2 - y1) >= self.min_side:
                area, part = (x2 - x1) * (y2 - y1), bright[y1:y2, x1:x2]
                green = image[1, y1:y2, x1:x2][part].float().mean()
                rows.append((x1, y1, x2, y2, area / (area + 100), 1 if green > 127 else 2))
                cells = F.interpolate(part[None, None].float(), (CELLS, CELLS), mode="area")
                masks.append(cells[0])
        return detections(*rows, mask_probs=torch.cat(masks))


def detections(*rows, **more):
    """Build detections from rows (x1, y1, x2, y2, score, label)."""
    rows = torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)
    valid = torch.ones(len(rows), dtype=torch.bool)
    return Detections(rows[:, :4], rows[:, 4], rows[:, 5].long(), valid, **more)


def draw_discs(size, radii, seed=0, gap=8):
    """Return an image uint8 [3, H, W] of separate discs, and their boxes and masks [N, H, W]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: size[0], : size[1]]
    boxes, masks = [], []
    while len(masks) < len(radii):
        radius = radii[len(masks)]
        v, u = (rng.integers(radius + 1, side - radius - 1) for side in size)
        distance = np.hypot(y - v, x - u)
        if not any(mask[distance < radius + gap].any() for mask in masks):
            masks.append(distance <= radius)
            boxes.append([u - radius, v - radius, u + radius + 1, v + radius + 1])
    scene = 255 * np.any(masks, axis=0).astype(np.uint8)
    return torch.from_numpy(scene).expand(3, *size), torch.tensor(boxes).float(), np.stack(masks)


def assert_detected_once(prediction, boxes, min_iou=0.9):
    """Check that each box is detected once and nothing else; return the detections' indices."""
    overlap = box_ops.iou(boxes, prediction["boxes"])
    assert (overlap > min_iou).sum(dim=1).tolist() == [1] * len(boxes)
    assert len(prediction["boxes"]) == len(boxes)
    return overlap.argmax(dim=1)


def test_only_borders_within_the_image_cut_boxes():
    boxes = torch.tensor([[0.0, 0, 50, 50], [20, 20, 64, 40], [20, 20, 63.5, 40], [20, 20, 60, 40]])
    assert Tile(0, 0, 64, 64).cuts(boxes, (64, 200)).tolist() == [False, True, True, False]
    assert not Tile(0, 0, 64, 64).cuts(boxes, (64, 64)).any()
    lower = Tile(0, 64, 64, 128).cuts(boxes + torch.tensor([0, 64.0, 0, 64]), (200, 64))
    assert lower.tolist() == [True, False, False, False]


def predict_tiles(model, scene, side, batch=8):
    """Predict with tiles that keep their size, and the whole image with `side` as short side."""
    options = InferenceOptions(View(side, 1000), tile=side, tile_batch=batch)
    return Predictor(model, options=options)(scene)


class TestDiscs:
    def test_detections_are_the_same_without_tiles_at_the_same_scale(self):
        scene, boxes, _ = draw_discs((300, 400), [9] * 25)
        model = BrightParts()
        plain = Predictor(model, 300, 1000)(scene)
        assert_detected_once(plain, boxes, 0.99)
        assert model.sizes == [[(300, 400)]]
        tiled = predict_tiles(model, scene, 128)
        matched = assert_detected_once(tiled, boxes, 0.99)
        order = assert_detected_once(plain, boxes, 0.99)
        assert torch.equal(tiled["scores"][matched], plain["scores"][order])
        assert torch.equal(tiled["masks"][matched], plain["masks"][order])
        assert (tiled["scores"].diff() <= 0).all()

    def test_objects_on_tile_borders_are_merged(self):
        """Discs larger than the overlap, and too small in the whole image."""
        scene, boxes, masks = draw_discs((800, 800), [24, 30, 36, 40] * 5, seed=2, gap=20)
        model = BrightParts(min_side=14)
        tiles = cut_tiles((800, 800), 160)
        cut = torch.stack([tile.cuts(tile.clip(boxes), (800, 800)) for tile in tiles])
        assert len(Predictor(model, 130, 1000)(scene)["boxes"]) == 0
        tiled = predict_tiles(model, scene, 160)
        indices = assert_detected_once(tiled, boxes)
        assert cut.any(dim=0).sum() > 10  # many are cut by a border
        for index, mask in zip(indices, masks, strict=True):
            own = tiled["masks"][index].numpy()
            assert (own & mask).sum() / (own | mask).sum() > 0.9

    @pytest.mark.parametrize("radius", [150, pytest.param(250, marks=pytest.mark.slow)])
    def test_an_object_larger_than_a_tile(self, radius):
        scene, boxes, masks = draw_discs((600, 700), [radius], seed=3)
        tiled = predict_tiles(BrightParts(), scene, 100)
        assert_detected_once(tiled, boxes)
        own = tiled["masks"][0].numpy()
        assert (own & masks[0]).sum() / (own | masks[0]).sum() > 0.95

    def test_different_labels_are_not_merged(self):
        scene = torch.zeros(3, 200, 400, dtype=torch.uint8)
        scene[:, 50:150, 150:199] = 255
        scene[0, 50:150, 200:250] = scene[2, 50:150, 200:250] = 255
        scene[:, 100:101, 199:200] = 0
        tiled = predict_tiles(BrightParts(), scene, 200)
        assert sorted(tiled["names"]) == ["magenta", "white"]

    def test_tiles_are_batched(self):
        model = BrightParts()
        scene = torch.zeros(3, 260, 260, dtype=torch.uint8)
        predict_tiles(model, scene, 100, batch=4)
        assert list(map(len, model.sizes)) == [1, 4, 4, 1]
        assert len(predict_tiles(model, scene, 300)["boxes"]) == 0
        assert model.sizes[4:] == [[(300, 300)]]  # it fits into one tile


# Tiles of 100 x 100 that overlap in x from 80 to 100, and from 160 to 180.
TILES = LEFT, RIGHT, _ = [Tile(x, 0, x + 100, 100) for x in (0, 80, 160)]
WIDE = Tile(0, 0, 180, 100)
DETLITE = CONVENTIONS["detlite"]


def merge_tiles(found, tiles=TILES, iou_thresh=0.5, agnostic=False):
    return merge(tiles[: len(found)], found, (100, 260), iou_thresh, DETLITE, agnostic)


CUT_LEFT, CUT_RIGHT = (50, 20, 100, 60), (80, 22, 130, 60)
WHOLE, PART, COMPLETE = (70, 20, 98, 60), (80, 20, 98, 60), (84, 20, 96, 40)
HALF = (84, 20, 96, 30)  # IoU 0.5 with COMPLETE


class TestMerging:
    @pytest.mark.parametrize(
        ("rows", "options", "expected"),
        [
            # two halves of an object
            ([[(*CUT_LEFT, 0.8, 1)], [(*CUT_RIGHT, 0.9, 1)]], {}, [(50, 20, 130, 60, 0.9)]),
            # two neighbors at one border: each tile cuts one, and they do not overlap in both
            (
                [
                    [(60, 20, 100, 60, 0.8, 1), (60, 62, 84, 90, 0.7, 1)],
                    [(80, 20, 130, 60, 0.9, 1), (88, 62, 150, 90, 0.6, 1)],
                ],
                {},
                [(60, 20, 130, 60, 0.9), (60, 62, 84, 90, 0.7), (88, 62, 150, 90, 0.6)],
            ),
            # complete in one tile: the part adds nothing, or is completed
            ([[(*WHOLE, 0.9, 1)], [(*PART, 0.6, 1)]], {}, [(*WHOLE, 0.9)]),
            ([[(*WHOLE, 0.6, 1)], [(*PART, 0.9, 1)]], {}, [(*WHOLE, 0.9)]),
            # a narrow part is dropped
            ([[(50, 20, 83, 60, 0.9, 1)], [(80, 15, 90, 70, 0.3, 1)]], {}, [(50, 20, 83, 60, 0.9)]),
            # a part that shares 60 % of the smaller box is dropped, and one with 40 % is kept
            ([[(50, 20, 88, 60, 0.9, 1)], [(80, 36, 90, 76, 0.3, 1)]], {}, [(50, 20, 88, 60, 0.9)]),
            (
                [[(50, 20, 88, 60, 0.9, 1)], [(80, 44, 90, 84, 0.3, 1)]],
                {},
                [(50, 20, 88, 60, 0.9), (80, 44, 90, 84, 0.3)],
            ),
            # a small object within a large one
            (
                [[(84, 20, 94, 30, 0.9, 1)], [(82, 10, 98, 90, 0.8, 1)]],
                {},
                [(84, 20, 94, 30, 0.9), (82, 10, 98, 90, 0.8)],
            ),
            # an object in three tiles
            (
                [[(30, 20, 100, 60, 0.9, 1)], [(80, 20, 180, 60, 0.8, 1)],
                 [(160, 20, 200, 60, 0.7, 1)]],
                {},
                [(30, 20, 200, 60, 0.9)],
            ),
            # complete objects are suppressed as by the model, also those of other labels
            ([[(*COMPLETE, 0.9, 1)], [(*HALF, 0.8, 1)]], {"iou_thresh": 0.3}, [(*COMPLETE, 0.9)]),
            (
                [[(*COMPLETE, 0.9, 1)], [(*HALF, 0.8, 1)]],
                {"iou_thresh": 0.6},
                [(*COMPLETE, 0.9), (*HALF, 0.8)],
            ),
            ([[(*COMPLETE, 0.9, 1)], [(*HALF, 0.8, 2)]],
             {"iou_thresh": 0.3, "agnostic": True}, [(*COMPLETE, 0.9)]),
            ([[(*COMPLETE, 0.9, 1)], [(*HALF, 0.8, 2)]],
             {"iou_thresh": 0.3}, [(*COMPLETE, 0.9), (*HALF, 0.8)]),
            # a coarser detection is merged only if it exceeds the tile
            ([[(48, 18, 101, 64, 0.5, 1)], [(50, 20, 100, 60, 0.9, 1)]],
             {"tiles": [WIDE, LEFT]}, [(50, 20, 100, 60, 0.9)]),
            ([[(48, 18, 120, 64, 0.5, 1)], [(50, 20, 100, 60, 0.9, 1)]],
             {"tiles": [WIDE, LEFT]}, [(48, 18, 120, 64, 0.9)]),
            ([[], []], {}, []),
            ([[(1, 1, 9, 9, 0.5, 1)], []], {}, [(1, 1, 9, 9, 0.5)]),
        ],
    )  # fmt: skip
    def test_boxes(self, rows, options, expected):
        merged = merge_tiles([detections(*of_tile) for of_tile in rows], **options)
        found = torch.cat([merged.boxes, merged.scores[:, None]], dim=1)
        torch.testing.assert_close(found, torch.tensor(expected).float().reshape(-1, 5))
        assert merged.mask_probs is None

    def test_masks_fill_their_own_boxes(self):
        """`mask_boxes` are united separately from the boxes."""
        masks = {"mask_probs": torch.ones(1, 14, 14)}
        parts = [torch.tensor([box]).float() for box in (CUT_LEFT, CUT_RIGHT)]
        moved = torch.tensor([1.0, 1, 0, 0])
        merged = merge_tiles(
            [detections((*(p + moved)[0], 0.8, 1), mask_boxes=p, **masks) for p in parts]
        )
        plain = merge_tiles([detections((*p[0], 0.8, 1), **masks) for p in parts])
        assert merged.boxes.tolist() == [[51, 21, 130, 60]]
        assert merged.mask_boxes.tolist() == plain.boxes.tolist() == [[50, 20, 130, 60]]
        assert torch.equal(merged.mask_probs, plain.mask_probs)

    def test_only_tiles_that_overlap_are_compared(self, monkeypatch):
        """The time of a large image grows with its tiles, not with their square."""
        calls = []
        overlaps = tiling._overlaps
        monkeypatch.setattr(tiling, "_overlaps", lambda *a: calls.append(1) or overlaps(*a))
        tiles = [Tile(80 * k, 0, 80 * k + 100, 100) for k in range(20)]
        found = [detections((80 * k + 30, 20, 80 * k + 60, 60, 0.9, 1)) for k in range(20)]
        assert len(merge(tiles, found, (100, 1620), 0.5, DETLITE).boxes) == 20
        assert len(calls) == 2 * 19

    def test_masks_are_merged(self):
        probs = torch.ones(1, CELLS, CELLS)
        left = detections((40, 20, 100, 60, 0.9, 1), mask_probs=probs)
        right = detections((80, 20, 140, 60, 0.8, 1), mask_probs=0.7 * probs)
        merged = merge_tiles([left, right])
        assert merged.boxes.tolist() == [[40, 20, 140, 60]]
        middle = merged.mask_probs[0, CELLS // 2]
        assert middle[2:15].tolist() == pytest.approx([1] * 13)
        assert middle[18:26].tolist() == pytest.approx([0.7] * 8)
        assert left.mask_probs.min() == 1  # the inputs are unchanged

    def test_the_keypoint_with_the_higher_score_counts(self):
        def points(x):
            return torch.tensor([[[x, 30.0, 1], [x + 1, 40, 1]]])

        left = detections((50, 20, 100, 60, 0.9, 1), keypoints=points(60.0),
                          keypoint_scores=torch.tensor([[3.0, -1]]))  # fmt: skip
        right = detections((80, 20, 130, 60, 0.8, 1), keypoints=points(120.0),
                           keypoint_scores=torch.tensor([[2.0, 5]]))  # fmt: skip
        merged = merge_tiles([left, right])
        assert merged.keypoints.tolist() == [[[60, 30, 1], [121, 40, 1]]]
        assert merged.keypoint_scores.tolist() == [[3, 5]]


def tiled_detector(model, side):
    return TiledDetector(ResizingDetector(model, View(64, 1000)), side)


def test_an_image_of_one_tile_is_not_cut(tiny_config):
    model = build_model(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)).eval()
    scene = torch.randint(0, 255, (3, 64, 96), dtype=torch.uint8)
    (plain,) = model.detect([scene])
    (tiled,) = tiled_detector(model, 96).detect([scene])
    assert len(tiled.boxes) > 5
    assert_same_objects(tiled, plain)
    views = [View(64, 1000), View(64, 1000, True)]
    (augmented,) = AugmentedDetector(model, views).detect([scene])
    options = InferenceOptions(views[0], views, 96)
    (tiled,) = build_detector(model, options)[0].detect([scene])
    assert_same_objects(tiled, augmented)


def test_a_mask_rcnn_in_tiles(tiny_config):
    model = build_model(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)).eval()
    scene = torch.randint(0, 255, (3, 100, 150), dtype=torch.uint8)
    detector = tiled_detector(model, 64)
    (tiled,) = detector.detect([scene])
    assert len(tiled.boxes) > 20
    assert tiled.mask_probs.shape == (len(tiled.boxes), 28, 28)
    assert (tiled.boxes >= 0).all()
    assert (tiled.boxes <= torch.tensor([150.0, 100, 150, 100])).all()
    assert (tiled.scores.diff() <= 0).all()
    for name in ("categories", "device", "convention", "mask_threshold", "takes_proposals"):
        assert getattr(detector, name) == getattr(model, name)
    assert detector.resizes_images
    assert not model.resizes_images


def test_tiling_from_the_config(tiny_config, tmp_path):
    cfg = tiny_config("INPUT.MIN_SIZE_TEST", 64, "TEST.OPTIMIZE", False)
    model = build_model(cfg).eval()
    options = replace(build_options(cfg), score_thresh=None)
    assert build_detector(model, options) == (model, "float32")
    cfg = tiny_config("TEST.TILE", 48, "TEST.IMS_PER_BATCH", 3)
    tiled = Predictor.from_checkpoint(write_weights(cfg, tmp_path / "model.pth")).detector
    assert (tiled.side, tiled.batch) == (48, 3)
    with pytest.raises(ConfigError, match=r"TEST\.TILE"):
        load_config(None, ["TEST.TILE", -1])


def test_proposals_are_refused(tiny_config):
    model = build_model(tiny_config("MODEL.LOAD_PROPOSALS", True)).eval()
    with pytest.raises(ConfigError, match=r"TEST\.TILE must be 0 for a Fast R-CNN"):
        tiled_detector(model, 64)
