"""Pictures in tiles: what is planted in them is found, once and whole."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detlite.config import ConfigError, load_config
from detlite.conventions import CONVENTIONS
from detlite.conversion.checkpoint.files import Checkpoint, save_checkpoint
from detlite.inference.exporters import outlines
from detlite.inference.predictor import Predictor
from detlite.inference.tile_merging import Tile, join
from detlite.inference.tiling import TiledDetector, Tiling, build_picture_detector, picture_detector
from detlite.inference.tta import AugmentedDetector, View
from detlite.modeling.build import build_model
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections

CELLS = 28


class BrightParts(nn.Module):
    """Finds each bright part of an image, as far as both of its sides have so many pixels.

    Label 1, or 2 for what is not green. The more of it there is, the surer it is found.
    """

    categories = ({"id": 1, "name": "white"}, {"id": 2, "name": "magenta"})
    convention = CONVENTIONS["detlite"]
    mask_threshold = 0.5
    device = torch.device("cpu")
    takes_proposals = False
    postprocess = SimpleNamespace(
        suppression=SimpleNamespace(iou_thresh=0.5, views_iou_thresh=None)
    )

    def __init__(self, smallest=4):
        super().__init__()
        self.smallest = smallest
        self.batches = []

    def detect(self, images, given=None, min_score=0.0):
        self.batches.append([tuple(image.shape[1:]) for image in images])
        return [self._detect(image, min_score) for image in images]

    def _detect(self, image, min_score):
        bright = image[0] > 127
        boxes, labels, scores, masks = [], [], [], []
        for polygon in outlines(bright.numpy()):
            x1, y1, x2, y2 = (int(v) for v in (*polygon.min(axis=0), *polygon.max(axis=0)))
            score = (x2 - x1) * (y2 - y1) / ((x2 - x1) * (y2 - y1) + 100)
            if min(x2 - x1, y2 - y1) < self.smallest or score < min_score:
                continue
            part = bright[y1:y2, x1:x2]
            boxes.append([x1, y1, x2, y2])
            green = image[1, y1:y2, x1:x2][part].float().mean()
            labels.append(1 if green > 127 else 2)
            scores.append(score)
            masks.append(F.interpolate(part[None, None].float(), (CELLS, CELLS), mode="area")[0, 0])
        return Detections(
            torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
            torch.tensor(scores),
            torch.tensor(labels, dtype=torch.int64),
            torch.ones(len(boxes), dtype=torch.bool),
            torch.stack(masks) if masks else torch.zeros(0, CELLS, CELLS),
        )


def planted(size, radii, seed=0, gap=8, white=True):
    """A picture uint8 [3, H, W] of discs that keep apart, with the boxes and masks of them."""
    rng = np.random.default_rng(seed)
    height, width = size
    y, x = np.mgrid[:height, :width]
    picture, masks, places = np.zeros((3, height, width), np.uint8), [], []
    while len(masks) < len(radii):
        radius = radii[len(masks)]
        centre = [rng.integers(radius + 1, side - radius - 1) for side in size]
        if any(np.hypot(centre[0] - v, centre[1] - u) < radius + r + gap for v, u, r in places):
            continue
        places.append((*centre, radius))
        mask = np.hypot(y - centre[0], x - centre[1]) <= radius
        picture[:, mask] = np.array([255, 255 if white else 0, 255])[:, None]
        masks.append(mask)
    boxes = [[m.any(0).argmax(), m.any(1).argmax()] for m in masks]
    boxes = [[x1, y1, x1 + m.any(0).sum(), y1 + m.any(1).sum()]
             for (x1, y1), m in zip(boxes, masks, strict=True)]  # fmt: skip
    return torch.from_numpy(picture), torch.tensor(boxes, dtype=torch.float32), np.stack(masks)


def found_once(found, boxes, least=0.9):
    """The place of each planted box's detection: all are found once, and nothing else."""
    overlap = box_ops.iou(boxes, found["boxes"])
    assert (overlap > least).sum(dim=1).tolist() == [1] * len(boxes)
    assert len(found["boxes"]) == len(boxes)
    return overlap.argmax(dim=1)


class TestTiles:
    @pytest.mark.parametrize("side", [64, 100, 300])
    @pytest.mark.parametrize("overlap", [0.0, 0.2, 0.5, 0.9])
    @pytest.mark.parametrize("size", [(64, 640), (101, 333), (65, 64), (20, 99), (300, 301)])
    def test_cover_the_picture(self, side, overlap, size):
        tiles = Tiling(side, overlap).tiles(size)
        covered = np.zeros(size, int)
        for tile in tiles:
            assert 0 <= tile.x1 < tile.x2 <= size[1]
            assert (tile.x2 - tile.x1, tile.y2 - tile.y1) == (
                min(side, size[1]),
                min(side, size[0]),
            )
            covered[tile.y1 : tile.y2, tile.x1 : tile.x2] += 1
        assert covered.min() == 1 or overlap > 0
        assert covered.min() >= 1
        for axis, length in (("x", size[1]), ("y", size[0])):
            starts = sorted({getattr(tile, f"{axis}1") for tile in tiles})
            steps = np.diff(starts)
            assert (steps <= max(1, int(side * (1 - overlap)))).all()
            one_less = len(starts) - 1
            step = max(1, int(side * (1 - overlap)))
            assert length <= side or side + (one_less - 1) * step < length  # no tile too many

    def test_seams_are_borders_within_the_picture(self):
        boxes = torch.tensor(
            [[0.0, 0, 50, 50], [20, 20, 64, 40], [20, 20, 63.5, 40], [20, 20, 60, 40]]
        )
        assert Tile(0, 0, 64, 64).cuts(boxes, (64, 200)).tolist() == [False, True, True, False]
        assert not Tile(0, 0, 64, 64).cuts(boxes, (64, 64)).any()
        lower = Tile(0, 64, 64, 128).cuts(boxes + torch.tensor([0, 64.0, 0, 64]), (200, 64))
        assert lower.tolist() == [True, False, False, False]


class TestPlantedObjects:
    def test_the_same_as_without_tiles_where_sizes_agree(self):
        picture, boxes, _ = planted((500, 700), [9] * 60)
        model = BrightParts()
        plain = Predictor(model, 500, 1000)(picture)
        found_once(plain, boxes, 0.99)
        assert model.batches == [[(500, 700)]]
        tiled = Predictor(model, 128, 1000, tiling=Tiling(128, 0.25))(picture)
        matched = found_once(tiled, boxes, 0.99)
        order = found_once(plain, boxes, 0.99)
        assert torch.equal(tiled["scores"][matched], plain["scores"][order])
        assert torch.equal(tiled["masks"][matched], plain["masks"][order])
        assert (tiled["scores"].diff() <= 0).all()

    def test_small_ones_are_found_with_tiles_alone(self):
        picture, boxes, _ = planted((600, 800), [6] * 40, seed=1)
        model = BrightParts(smallest=8)
        assert len(Predictor(model, 150, 1000)(picture)["boxes"]) == 0
        tiled = Predictor(model, 150, 1000, tiling=Tiling(150, 0.2))(picture)
        found_once(tiled, boxes, 0.99)

    def test_objects_over_seams_are_one_and_whole(self):
        """They are larger than the overlap, and too small for the view of the whole picture."""
        picture, boxes, masks = planted((800, 800), [24, 30, 36, 40] * 5, seed=2, gap=20)
        model = BrightParts(smallest=14)
        tiling = Tiling(160, 0.2)
        cut = torch.stack(
            [tile.cuts(tile.clip(boxes), (800, 800)) for tile in tiling.tiles((800, 800))]
        )
        assert len(Predictor(model, 130, 1000)(picture)["boxes"]) == 0
        tiled = Predictor(model, 160, 1000, tiling=tiling)(picture)
        places = found_once(tiled, boxes)
        assert cut.any(dim=0).sum() > 10  # many of them do lie over seams
        for place, mask in zip(places, masks, strict=True):
            own = tiled["masks"][place].numpy()
            assert (own & mask).sum() / (own | mask).sum() > 0.9

    @pytest.mark.parametrize("radius", [150, 250])
    def test_one_larger_than_a_tile(self, radius):
        picture, boxes, masks = planted((600, 700), [radius], seed=3)
        tiled = Predictor(BrightParts(), 100, 1000, tiling=Tiling(100, 0.2))(picture)
        found_once(tiled, boxes)
        own = tiled["masks"][0].numpy()
        assert (own & masks[0]).sum() / (own | masks[0]).sum() > 0.95

    def test_labels_are_kept_apart(self):
        picture = torch.zeros(3, 200, 400, dtype=torch.uint8)
        picture[:, 50:150, 150:199] = 255
        picture[0, 50:150, 200:250] = picture[2, 50:150, 200:250] = 255
        picture[:, 100:101, 199:200] = 0
        model = BrightParts()
        tiled = Predictor(model, 200, 1000, tiling=Tiling(200, 0.2))(picture)
        assert sorted(tiled["names"]) == ["magenta", "white"]

    def test_tiles_are_batched(self):
        model = BrightParts()
        picture = torch.zeros(3, 300, 300, dtype=torch.uint8)
        Predictor(model, 100, 1000, tiling=Tiling(100, 0.0, batch=4))(picture)
        assert list(map(len, model.batches)) == [1, 4, 4, 1]
        assert len(Predictor(model, 100, 1000, tiling=Tiling(300))(picture)["boxes"]) == 0
        assert model.batches[4:] == [[(100, 100)]]  # it fits into one


def detections(*rows, **more):
    """Detections from (x1, y1, x2, y2, score, label)."""
    rows = torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)
    valid = torch.ones(len(rows), dtype=torch.bool)
    return Detections(rows[:, :4], rows[:, 4], rows[:, 5].long(), valid, **more)


# Two tiles of 100 x 100 that share x 80..100.
LEFT, RIGHT = Tile(0, 0, 100, 100), Tile(80, 0, 180, 100)
DETLITE = CONVENTIONS["detlite"]


def joined(left, right, iou_thresh=0.5):
    return join([LEFT, RIGHT], [left, right], (100, 180), iou_thresh, DETLITE)


class TestJoining:
    def test_two_halves_of_an_object(self):
        found = joined(detections((50, 20, 100, 60, 0.8, 1)), detections((80, 22, 130, 60, 0.9, 1)))
        assert found.boxes.tolist() == [[50, 20, 130, 60]]
        assert found.scores.tolist() == [pytest.approx(0.9)]
        assert found.mask_probs is None

    def test_two_neighbours_at_one_seam(self):
        """Each tile cuts one of them; in what both show they do not cover each other."""
        left = detections((60, 20, 100, 60, 0.8, 1), (60, 62, 84, 90, 0.7, 1))
        right = detections((80, 20, 130, 60, 0.9, 1), (88, 62, 150, 90, 0.6, 1))
        assert sorted(joined(left, right).boxes.tolist()) == [
            [60, 20, 130, 60], [60, 62, 84, 90], [88, 62, 150, 90],
        ]  # fmt: skip

    def test_one_that_is_whole_in_one_tile(self):
        """The part adds nothing to it; a surer part is completed by it."""
        whole, part = (70, 20, 98, 60), (80, 20, 98, 60)
        for scores in ((0.9, 0.6), (0.6, 0.9)):
            found = joined(detections((*whole, scores[0], 1)), detections((*part, scores[1], 1)))
            assert found.boxes.tolist() == [[*whole]]
            assert found.scores.tolist() == [pytest.approx(0.9)]

    def test_a_sliver_is_dropped(self):
        found = joined(detections((50, 20, 83, 60, 0.9, 1)), detections((80, 15, 90, 70, 0.3, 1)))
        assert found.boxes.tolist() == [[50, 20, 83, 60]]

    @pytest.mark.parametrize(("iou_thresh", "count"), [(0.3, 1), (0.6, 2)])
    def test_whole_ones_are_suppressed_as_by_the_model(self, iou_thresh, count):
        left = detections((84, 20, 96, 40, 0.9, 1))
        right = detections((84, 20, 96, 30, 0.8, 1))  # IoU 0.5
        assert len(joined(left, right, iou_thresh).boxes) == count

    def test_nothing_to_complete(self):
        """One that ends at a seam and does not go on behind it is not united with a coarse view."""
        tiles = [Tile(0, 0, 180, 100), LEFT]
        parts = [detections((48, 18, 101, 64, 0.5, 1)), detections((50, 20, 100, 60, 0.9, 1))]
        assert join(tiles, parts, (100, 180), 0.5, DETLITE).boxes.tolist() == [[50, 20, 100, 60]]
        parts[0] = detections((48, 18, 120, 64, 0.5, 1))
        assert join(tiles, parts, (100, 180), 0.5, DETLITE).boxes.tolist() == [[48, 18, 120, 64]]

    def test_a_small_one_within_a_large_one(self):
        left = detections((84, 20, 94, 30, 0.9, 1))
        right = detections((82, 10, 98, 90, 0.8, 1))
        assert len(joined(left, right).boxes) == 2

    def test_masks_are_united(self):
        probs = torch.ones(1, CELLS, CELLS)
        left = detections((40, 20, 100, 60, 0.9, 1), mask_probs=probs)
        right = detections((80, 20, 140, 60, 0.8, 1), mask_probs=0.7 * probs)
        found = joined(left, right)
        assert found.boxes.tolist() == [[40, 20, 140, 60]]
        middle = found.mask_probs[0, CELLS // 2]
        assert middle[2:15].tolist() == pytest.approx([1] * 13)
        assert middle[18:26].tolist() == pytest.approx([0.7] * 8)
        assert left.mask_probs.min() == 1  # what is joined stays as it was

    def test_the_surer_keypoint_counts(self):
        def points(x):
            return torch.tensor([[[x, 30.0, 1], [x + 1, 40, 1]]])

        left = detections((50, 20, 100, 60, 0.9, 1), keypoints=points(60.0),
                          keypoint_scores=torch.tensor([[3.0, -1]]))  # fmt: skip
        right = detections((80, 20, 130, 60, 0.8, 1), keypoints=points(120.0),
                           keypoint_scores=torch.tensor([[2.0, 5]]))  # fmt: skip
        found = joined(left, right)
        assert found.keypoints.tolist() == [[[60, 30, 1], [121, 40, 1]]]
        assert found.keypoint_scores.tolist() == [[3, 5]]

    def test_three_in_a_row(self):
        tiles = [Tile(0, 0, 100, 100), Tile(80, 0, 180, 100), Tile(160, 0, 260, 100)]
        parts = [detections((30, 20, 100, 60, 0.9, 1)), detections((80, 20, 180, 60, 0.8, 1)),
                 detections((160, 20, 200, 60, 0.7, 1))]  # fmt: skip
        found = join(tiles, parts, (100, 260), 0.5, DETLITE)
        assert found.boxes.tolist() == [[30, 20, 200, 60]]

    def test_nothing(self):
        assert joined(detections(), detections()).boxes.shape == (0, 4)
        found = joined(detections((1, 1, 9, 9, 0.5, 1)), detections())
        assert found.boxes.tolist() == [[1, 1, 9, 9]]


def assert_same(found, wanted):
    for field in fields(wanted):
        value = getattr(wanted, field.name)
        if value is None:
            assert getattr(found, field.name) is None
        else:
            torch.testing.assert_close(getattr(found, field.name), value)


def test_a_picture_of_one_tile_is_detected_in_as_without(tiny_config):
    model = build_model(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)).eval()
    picture = torch.randint(0, 255, (3, 64, 96), dtype=torch.uint8)
    (plain,) = model.detect([picture])
    (found,) = TiledDetector(model, Tiling(96), View(64, 1000)).detect([picture])
    assert len(found.boxes) > 5
    assert_same(found, plain)
    views = [View(64, 1000), View(64, 1000, True)]
    (augmented,) = AugmentedDetector(model, views).detect([picture])
    (found,) = picture_detector(model, views[0], views, Tiling(96)).detect([picture])
    assert_same(found, augmented)


def test_a_real_model_in_tiles(tiny_config):
    """Each detection is one of some tile, or the union of several."""
    model = build_model(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)).eval()
    picture = torch.randint(0, 255, (3, 100, 150), dtype=torch.uint8)
    (found,) = TiledDetector(model, Tiling(64, 0.2), View(64, 1000)).detect([picture])
    assert len(found.boxes) > 20
    assert found.mask_probs.shape == (len(found.boxes), 28, 28)
    assert (found.boxes >= 0).all()
    assert (found.boxes <= torch.tensor([150.0, 100, 150, 100])).all()
    assert (found.scores.diff() <= 0).all()


def test_config(tiny_config, tmp_path):
    cfg = tiny_config("INPUT.MIN_SIZE_TEST", 64)
    model = build_model(cfg).eval()
    assert build_picture_detector(cfg, model) is None
    cfg = tiny_config("TEST.TILE", 48, "TEST.TILE_OVERLAP", 0.3, "TEST.IMS_PER_BATCH", 3)
    assert build_picture_detector(cfg, model).tiling == Tiling(48, 0.3, 3)
    model.categories = [{"id": k, "name": f"kind {k}"} for k in (1, 2, 3)]
    path = tmp_path / "model.pth"
    save_checkpoint(Checkpoint(path, model.state_dict(), model.categories, cfg.dump()))
    seen = []
    predictor = Predictor.from_checkpoint(path)
    predictor.model.backbone.register_forward_hook(lambda *call: seen.append(len(call[2][0])))
    predictor(torch.zeros(3, 80, 48, dtype=torch.uint8))
    assert seen == [1, 2]
    for opts in (["TEST.TILE", -1], ["TEST.TILE_OVERLAP", 1.0]):
        with pytest.raises(ConfigError, match=opts[0]):
            load_config(None, opts)


def test_proposals_are_refused(tiny_config):
    model = build_model(tiny_config("MODEL.LOAD_PROPOSALS", True)).eval()
    with pytest.raises(ConfigError, match=r"TEST\.TILE must be 0: a Fast R-CNN's proposals"):
        TiledDetector(model, Tiling(64), View(64, 1000))
