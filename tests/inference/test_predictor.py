"""The predictor, on a model that finds the bright square of a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite import Predictor, build_model, optimize
from detlite.conventions import CONVENTIONS
from detlite.conversion.checkpoint.files import Checkpoint, save_checkpoint
from detlite.data import DataError
from detlite.structures.instances import Detections
from detlite.structures.masks.formats import to_bitmap


class BrightSquare(nn.Module):
    """Detects the bright square, and less surely the whole picture."""

    categories = ({"id": 7, "name": "square"}, {"id": 90, "name": "picture"})
    convention = CONVENTIONS["detlite"]
    mask_threshold = 0.5
    device = torch.device("cpu")

    def __init__(self, masks: bool = True) -> None:
        super().__init__()
        self.masks = masks
        self.calls: list[list[Tensor]] = []
        self.given: list[list[Tensor] | None] = []
        self.autocast: list[bool] = []

    @property
    def sizes(self) -> list[list[tuple[int, ...]]]:
        """(height, width) of the images of each call."""
        return [[tuple(image.shape[1:]) for image in images] for images in self.calls]

    def detect(
        self, images: list[Tensor], given: list[Tensor] | None, min_score: float
    ) -> list[Detections]:
        assert not self.training
        self.given.append(given)
        self.calls.append(images)
        self.autocast.append(torch.is_autocast_enabled("cpu"))
        found = [self._detect(image) for image in images]
        return [detections[detections.scores >= min_score] for detections in found]

    def _detect(self, image: Tensor) -> Detections:
        y, x = torch.nonzero(image.float().mean(dim=0) > 127, as_tuple=True)
        square = [int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1]
        height, width = image.shape[1:]
        return Detections(
            boxes=torch.tensor([square, [0, 0, width, height]], dtype=torch.float32),
            labels=torch.tensor([1, 2]),
            scores=torch.tensor([0.9, 0.3]),
            valid=torch.tensor([True, True]),
            mask_probs=torch.ones(2, 28, 28) if self.masks else None,
        )


@pytest.fixture
def picture() -> np.ndarray:
    """uint8 [60, 120, 3], with a bright square at x 20..60, y 10..50."""
    array = np.zeros((60, 120, 3), np.uint8)
    array[10:50, 20:60] = 255
    return array


@pytest.fixture
def predictor() -> Predictor:
    return Predictor(BrightSquare(), min_size=30, max_size=1000)


class TestPrediction:
    def test_is_in_the_frame_of_the_picture(
        self, predictor: Predictor, picture: np.ndarray
    ) -> None:
        found = predictor(picture)
        assert predictor.model.sizes == [[(30, 60)]]
        assert found["boxes"].tolist() == [[20, 10, 60, 50], [0, 0, 120, 60]]
        assert found["scores"].tolist() == pytest.approx([0.9, 0.3])
        assert found["labels"].tolist() == [1, 2]
        assert found["category_ids"] == [7, 90]
        assert found["names"] == ["square", "picture"]
        assert found["masks"].dtype == torch.bool
        assert (found["masks"][0].numpy() == (picture[:, :, 0] == 255)).all()
        assert found["masks"][1].float().mean() > 0.99  # pasting rounds the corners

    def test_every_form_of_a_picture(
        self, predictor: Predictor, picture: np.ndarray, tmp_path: Path
    ) -> None:
        picture[..., 0] //= 2  # so that the order of the channels matters
        Image.fromarray(picture).save(tmp_path / "p.png")
        forms = [
            picture,
            picture[:, :, ::-1][:, :, ::-1],
            torch.from_numpy(picture).permute(2, 0, 1),
            Image.fromarray(picture),
            tmp_path / "p.png",
            str(tmp_path / "p.png"),
            (tmp_path / "p.png").read_bytes(),
        ]
        for form in forms:
            predictor(form)
        first, *others = (images[0] for images in predictor.model.calls)
        assert len(others) == 6
        assert all(torch.equal(image, first) for image in others)

    def test_list_is_one_batch(self, predictor: Predictor, picture: np.ndarray) -> None:
        found = predictor([picture, picture[:50]])
        assert predictor.model.sizes == [[(30, 60), (30, 72)]]
        assert [f["masks"].shape[1:] for f in found] == [(60, 120), (50, 120)]
        assert predictor([]) == []

    def test_max_size(self, picture: np.ndarray) -> None:
        predictor = Predictor(BrightSquare(), min_size=30, max_size=40)
        assert predictor(picture)["boxes"][1].tolist() == [0, 0, 120, 60]
        assert predictor.model.sizes == [[(20, 40)]]

    def test_score_threshold(self, picture: np.ndarray) -> None:
        found = Predictor(BrightSquare(), score_thresh=0.5)(picture)
        assert found["names"] == ["square"]
        assert found["masks"].shape == (1, 60, 120)

    def test_nothing_found(self, picture: np.ndarray) -> None:
        found = Predictor(BrightSquare(), score_thresh=1.0)(picture)
        assert found["boxes"].shape == (0, 4)
        assert found["masks"].shape == (0, 60, 120)
        assert found["names"] == []

    def test_run_lengths(self, picture: np.ndarray) -> None:
        bitmaps = Predictor(BrightSquare())(picture)["masks"].numpy()
        rles = Predictor(BrightSquare(), rle=True)(picture)["masks"]
        for rle, bitmap in zip(rles, bitmaps, strict=True):
            assert (to_bitmap(rle, 60, 120) == bitmap).all()

    def test_without_mask_head(self, picture: np.ndarray) -> None:
        assert "masks" not in Predictor(BrightSquare(masks=False))(picture)

    def test_files_are_read_by_their_limits(self, picture: np.ndarray, tmp_path: Path) -> None:
        file = tmp_path / "p.png"
        Image.fromarray(picture[:, :, 0].astype(np.uint16) * 16).save(file)
        with pytest.raises(DataError, match="more than 99 pixels"):
            Predictor(BrightSquare(), max_pixels=99)(file)
        predictor = Predictor(BrightSquare(), image_bits=12)
        assert np.array_equal(predictor.load(file).original[0].numpy(), picture[:, :, 0])
        assert len(predictor(file)["boxes"]) == 2

    def test_files_are_turned_as_the_convention_does(
        self, predictor: Predictor, picture: np.ndarray, tmp_path: Path
    ) -> None:
        exif = Image.Exif()
        exif[0x0112] = 3
        Image.fromarray(picture).save(tmp_path / "p.png", exif=exif)
        for name, wanted in (("detlite", picture[::-1, ::-1]), ("maskrcnn-benchmark", picture)):
            predictor.model.convention = CONVENTIONS[name]
            found = predictor.load(tmp_path / "p.png").original
            assert np.array_equal(found.permute(1, 2, 0).numpy(), wanted)

    def test_proposals_are_scaled_with_their_picture(
        self, predictor: Predictor, picture: np.ndarray
    ) -> None:
        given = torch.tensor([[20.0, 10, 60, 50]])
        predictor(picture)
        predictor(picture, given)
        predictor([picture, picture[:30]], [given, given + 1000])
        none, (one,), (first, second) = predictor.model.given
        assert none is None
        assert one.tolist() == first.tolist() == [[10, 5, 30, 25]]
        assert second.tolist() == [[120, 30, 120, 30]]  # clipped to the image
        with pytest.raises(ValueError, match="2 pictures, but proposals of 1"):
            predictor([picture, picture], [given])

    def test_dtype_is_that_of_the_forward_pass(self, picture: np.ndarray) -> None:
        model = BrightSquare()
        for dtype in ("float32", "bfloat16"):
            Predictor(model, dtype=dtype)(picture)
        assert model.autocast == [False, True]


class TestFromCheckpoint:
    def test_is_the_model_that_was_saved(
        self, tiny_config: Callable[..., CfgNode], tmp_path: Path, picture: np.ndarray
    ) -> None:
        cfg = tiny_config("INPUT.MIN_SIZE_TEST", 64, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
        model = build_model(cfg)
        model.categories = [{"id": 10 * k, "name": f"kind {k}"} for k in (1, 2, 3)]
        path = tmp_path / "model.pth"
        save_checkpoint(Checkpoint(path, model.state_dict(), model.categories, cfg.dump()))
        loaded = Predictor.from_checkpoint(path)
        expected = Predictor(optimize(model, "float32"), min_size=64)(picture)
        found = loaded(picture)
        assert loaded.categories == model.categories
        assert len(found["names"]) > 0
        assert found["names"] == expected["names"]
        for name in ("boxes", "labels", "scores", "masks"):
            assert torch.equal(found[name], expected[name])

        opts = ["INPUT.MIN_SIZE_TEST", 32, "INPUT.MAX_SIZE_TEST", 48, "DTYPE", "bfloat16"]
        other = Predictor.from_checkpoint(path, opts, score_thresh=0.3, rle=True)
        assert (other.min_size, other.max_size) == (32, 48)
        (level, *_) = other.model.backbone(torch.zeros(1, 3, 32, 32))
        assert level.dtype == torch.bfloat16
        plain = Predictor.from_checkpoint(path, [*opts, "TEST.OPTIMIZE", False])
        assert plain.dtype == "bfloat16"
        assert (other.score_thresh, other.rle) == (0.3, True)


class TestBadInput:
    @pytest.mark.parametrize(
        ("bad", "error", "message"),
        [
            (
                np.zeros((4, 4, 3)),
                ValueError,
                r"uint8 \[H, W, 3\]; this one is float64 \[4, 4, 3\]",
            ),
            (np.zeros((3, 4, 4), np.uint8), ValueError, r"this one is uint8 \[3, 4, 4\]"),
            (np.zeros((4, 4), np.uint8), ValueError, r"this one is uint8 \[4, 4\]"),
            (torch.zeros(3, 4, 4), ValueError, r"uint8 \[3, H, W\]; this one is float32"),
            (torch.zeros(4, 4, 3, dtype=torch.uint8), ValueError, r"this one is uint8 \[4, 4, 3\]"),
            (torch.zeros(3, 0, 4, dtype=torch.uint8), ValueError, "the picture has no pixels"),
            (Image.new("F", (4, 4)), ValueError, "PIL image has mode 'F'"),
            (Image.new("I;16", (4, 4)), ValueError, "PIL image has mode 'I;16'"),
            (
                7,
                TypeError,
                "a picture is a path, bytes, a PIL image, an array or a tensor, not int",
            ),
            ("no.png", DataError, r"no\.png: no such picture file"),
        ],
    )
    def test_picture(
        self, predictor: Predictor, bad: Any, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            predictor(bad)

    def test_model_without_categories(self, predictor: Predictor, picture: np.ndarray) -> None:
        predictor.model.categories = []
        with pytest.raises(ValueError, match=r"label 1, and there are 0 categories: model\.cat"):
            predictor(picture)


def test_the_mask_head_sees_only_what_scores_enough(
    tiny_config: Callable[..., CfgNode], picture: np.ndarray
) -> None:
    model = build_model(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)).eval()
    model.categories = [{"id": k, "name": str(k)} for k in (1, 2, 3)]
    everything = Predictor(model, min_size=64)(picture)
    middle = everything["scores"].median().item()
    seen: list[int] = []
    hook = model.roi_heads.mask.register_forward_hook(lambda *call: seen.append(len(call[2])))
    found = Predictor(model, min_size=64, score_thresh=middle)(picture)
    hook.remove()
    kept = everything["scores"] >= middle
    assert seen == [int(kept.sum())] < [len(kept)]
    assert torch.equal(found["boxes"], everything["boxes"][kept])
    assert torch.equal(found["masks"], everything["masks"][kept])
