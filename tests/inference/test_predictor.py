"""The predictor, with a model that detects the bright square in an image."""

import copy
import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from detlite import Predictor, build_model, optimize
from detlite.config import ConfigError
from detlite.conventions import CONVENTIONS
from detlite.data import DataError
from detlite.data.images.pixels import ImageOptions
from detlite.inference.options import InferenceOptions, View, build_options
from detlite.structures.masks.formats import to_bitmap
from tests.builders import BrightSquare, square_image, write_weights
from tests.modeling.family import family_config


def options_for(**images: Any) -> InferenceOptions:
    return InferenceOptions(images=ImageOptions(**images))


@pytest.fixture
def image():
    return square_image()


@pytest.fixture
def predictor():
    return Predictor(BrightSquare(), min_size=30, max_size=1000)


def truncated_image():
    """Return an opened PNG without the end of its pixels, which Pillow has not decoded yet."""
    Image.effect_noise((64, 64), 9).save(file := io.BytesIO(), "PNG")
    return Image.open(io.BytesIO(file.getvalue()[:200]))


class TestPrediction:
    def test_is_in_pixels_of_the_original_image(self, predictor, image):
        prediction = predictor(image)
        assert predictor.model.sizes == [[(30, 60)]]
        assert prediction["boxes"].tolist() == [[20, 10, 60, 50], [0, 0, 120, 60]]
        assert prediction["scores"].tolist() == pytest.approx([0.9, 0.3])
        assert prediction["labels"].tolist() == [1, 2]
        assert prediction["category_ids"] == [7, 90]
        assert prediction["names"] == ["square", "image"]
        assert prediction["masks"].dtype == torch.bool
        assert (prediction["masks"][0].numpy() == (image[:, :, 0] == 255)).all()
        assert prediction["masks"][1].float().mean() > 0.99  # pasting rounds the corners

    def test_all_types_of_images(self, predictor, image, tmp_path):
        image[..., 0] //= 2  # so that the order of the channels matters
        Image.fromarray(image).save(tmp_path / "p.png")
        inputs = [
            image,
            image[:, :, ::-1][:, :, ::-1],
            image / 255,
            image.astype(">u2") * 256,
            image.astype(">f4") / 255,
            torch.from_numpy(image).permute(2, 0, 1) / 255,
            torch.from_numpy(image).permute(2, 0, 1),
            Image.fromarray(image),
            tmp_path / "p.png",
            str(tmp_path / "p.png"),
            content := (tmp_path / "p.png").read_bytes(),
            bytearray(content),
            memoryview(content),
            *[io.BytesIO(content)] * 2,  # a file that was read is read from its start again
        ]
        first = inputs[6]
        assert all(torch.equal(predictor.load(one).original, first) for one in inputs)
        gray = image[:, :, 1]
        for one in (gray, gray[:, :, None], gray / 255, gray > 0):
            loaded = predictor.load(one).original
            assert loaded.shape == (3, 60, 120)
            assert all(np.array_equal(channel.numpy(), gray) for channel in loaded)

    def test_images_of_a_list_with_one_padded_size_are_a_batch(self, predictor, image):
        predictions = predictor([image, image[:50]])
        assert predictor.model.sizes == [[(30, 60)], [(30, 72)]]
        predictor([image, image[:50], image[:58]])
        assert predictor.model.sizes[2:] == [[(30, 60), (30, 62)], [(30, 72)]]
        assert [one["masks"].shape[1:] for one in predictions] == [(60, 120), (50, 120)]
        assert predictor([]) == []

    def test_masks_as_rles(self, image):
        prediction, encoded = (Predictor(BrightSquare(), rle=rle)(image) for rle in (False, True))
        assert prediction.rotated_boxes().shape == (2, 5)
        assert torch.equal(prediction.rotated_boxes(), encoded.rotated_boxes())
        bitmaps, rles = prediction["masks"].numpy(), encoded["masks"]
        for rle, bitmap in zip(rles, bitmaps, strict=True):
            assert (to_bitmap(rle, 60, 120) == bitmap).all()

    def test_limits_of_files(self, image, tmp_path):
        file = tmp_path / "p.png"
        Image.fromarray(image[:, :, 0].astype(np.uint16) * 16).save(file)
        with pytest.raises(DataError, match="more than 99 pixels"):
            Predictor(BrightSquare(), options=options_for(max_pixels=99))(file)
        predictor = Predictor(BrightSquare(), options=options_for(bits=12))
        assert np.array_equal(predictor.load(file).original[0].numpy(), image[:, :, 0])
        assert len(predictor(file)["boxes"]) == 2

    def test_exif_orientation_follows_the_convention(self, image):
        model, content, exif = BrightSquare(), io.BytesIO(), Image.Exif()
        exif[0x0112] = 3
        Image.fromarray(image).save(content, "PNG", exif=exif)
        for name, expected in (("detlite", image[::-1, ::-1]), ("maskrcnn-benchmark", image)):
            model.convention = CONVENTIONS[name]
            for given in (content.getvalue(), Image.open(content)):
                original = Predictor(model).load(given).original
                assert np.array_equal(original.permute(1, 2, 0).numpy(), expected)

    def test_proposals_are_scaled_like_their_image(self, predictor, image):
        proposals = torch.tensor([[20.0, 10, 60, 50]])
        predictor(image)
        predictor(image, proposals)
        predictor([image, image[:30]], [proposals, proposals + 1000])
        none, (one,), (first,), (second,) = predictor.model.proposals
        assert none is None
        assert one.tolist() == first.tolist() == [[10, 5, 30, 25]]
        assert second.tolist() == [[120, 30, 120, 30]]  # clipped to the image
        with pytest.raises(ValueError, match="got 2 images, but proposals for 1"):
            predictor([image, image], [proposals])

    def test_dtype_of_the_forward_pass(self, image):
        model = BrightSquare()
        for dtype in ("float32", "bfloat16"):
            Predictor(model, options=InferenceOptions(dtype=dtype))(image)
        assert model.autocast == [False, True]


def test_a_checkpoint_becomes_the_saved_model(tiny_config, tmp_path, image):
    cfg = tiny_config("INPUT.MIN_SIZE_TEST", 64, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
    path = write_weights(cfg, tmp_path / "model.pth")
    prediction = Predictor.from_checkpoint(path, score_thresh=0.0)(image)
    model = Predictor.from_checkpoint(path, ["TEST.OPTIMIZE", False]).model
    assert model.categories[2] == {"id": 30, "name": "kind 3"}
    expected = Predictor(optimize(model, "float32"), min_size=64)(image)
    assert len(prediction["names"]) > 0
    assert prediction["names"] == expected["names"]
    for name in ("boxes", "labels", "scores", "masks"):
        assert torch.equal(prediction[name], expected[name])

    opts = ["INPUT.MIN_SIZE_TEST", 32, "INPUT.MAX_SIZE_TEST", 48, "DTYPE", "bfloat16"]
    other = Predictor.from_checkpoint(path, opts, score_thresh=0.3, rle=True)
    assert (other.min_size, other.max_size, other.score_thresh, other.rle) == (32, 48, 0.3, True)
    (level, *_) = other.detector.backbone(torch.zeros(1, 3, 32, 32))
    assert level.dtype == torch.bfloat16
    assert other.model.state_dict().keys() == model.state_dict().keys()  # not optimized
    pixels = torch.rand(3, 64, 64, requires_grad=True)
    other.model([pixels])[0]["scores"].sum().backward()
    assert pixels.grad.any()
    assert next(other.model.parameters()).requires_grad
    plain = Predictor.from_checkpoint(path, [*opts, "TEST.OPTIMIZE", False])
    assert plain.dtype == "bfloat16"


class TestBadInput:
    @pytest.mark.parametrize(
        ("bad", "error", "message"),
        [
            (np.full((4, 4, 3), 2.0), ValueError, r"floats must be in 0\.\.1, .* from 2 to 2:"),
            (np.full((4, 4, 3), np.nan), ValueError, r"floats must be in 0\.\.1, .* from nan to"),
            (torch.full((3, 4, 4), -1.0), ValueError, r"floats must be in 0\.\.1, .* from -1 to"),
            (np.zeros((4, 4, 3), np.int64), ValueError, r"uint16 or float \[H, W, 3\].*got int64"),
            (np.zeros((3, 4, 4), np.uint8), ValueError, r"got uint8 \[3, 4, 4\]"),
            (np.zeros(4, np.uint8), ValueError, r"got uint8 \[4\]"),
            (torch.zeros(4), ValueError, r"got float32 \[4\]"),
            (torch.zeros(4, 4, 3, dtype=torch.uint8), ValueError, r"got uint8 \[4, 4, 3\]"),
            (torch.zeros(3, 0, 4, dtype=torch.uint8), ValueError, r"pixels: got uint8 \[3, 0, 4\]"),
            (np.zeros((0, 4, 3), np.uint8), DataError, "array: has no pixels"),
            (Image.new("F", (4, 4)), DataError, r"PIL image of mode F: .*INPUT\.VALUE_RANGE"),
            (np.zeros((4, 4, 2), np.uint8), ValueError, r"got uint8 \[4, 4, 2\]"),
            (7, TypeError, "a path, a file, bytes, a PIL image, an array or a tensor: got int"),
            ("no.png", DataError, r"no\.png: the image file does not exist"),
            (io.TextIOWrapper(io.BytesIO(b"\x89")), TypeError, "must be opened in binary mode"),
            (truncated_image(), DataError, "PIL image of mode L: the image is damaged or trunc"),
            (np.ma.masked_equal(np.zeros((4, 4, 3)), 0), ValueError, "masks pixels: replace them"),
        ],
    )
    def test_invalid_image(self, predictor, bad, error, message):
        with pytest.raises(error, match=message):
            predictor(bad)

    def test_model_without_categories(self, predictor, image):
        predictor.model.categories = []
        with pytest.raises(ValueError, match=r"label 1, and there are 0 categories: model\.cat"):
            predictor(image)


def test_the_mask_head_computes_only_boxes_above_the_threshold(tiny_config, image):
    model = build_model(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)).eval()
    model.categories = [{"id": k, "name": str(k)} for k in (1, 2, 3)]
    everything = Predictor(model, min_size=64)(image)
    middle = everything["scores"].median().item()
    computed: list[int] = []
    hook = model.roi_heads.mask.register_forward_hook(lambda *call: computed.append(len(call[2])))
    prediction = Predictor(model, min_size=64, score_thresh=middle)(image)
    hook.remove()
    kept = everything["scores"] >= middle
    assert computed == [int(kept.sum())] < [len(kept)]
    assert torch.equal(prediction["boxes"], everything["boxes"][kept])
    assert torch.equal(prediction["masks"], everything["masks"][kept])


def test_a_long_list_is_divided_into_batches(image):
    options = InferenceOptions(View(30, 1000), tile_batch=3)
    predictor = Predictor(BrightSquare(), options=options)
    assert len(predictor([image] * 7)) == 7
    assert list(map(len, predictor.model.sizes)) == [3, 3, 1]


def test_folders_and_globs_become_lists_by_name(predictor, image, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.png", "a.png"):
        Image.fromarray(image).save(tmp_path / name)
    for source in (".", tmp_path, "*.png"):
        assert [Path(one.source).name for one in predictor(source)] == ["a.png", "b.png"]
    assert predictor((tmp_path / "a.png").as_uri())["names"] == ["square", "image"]
    with pytest.raises(DataError, match="an input is empty"):
        predictor("")


def test_predictions_can_be_drawn_and_printed(image):
    prediction = Predictor(BrightSquare(), score_thresh=0.1)(image)
    assert repr(prediction) == "Prediction(120 x 60 pixels: 1 square, 1 image; boxes, masks)"
    assert len(prediction) == 2
    drawn, without = prediction.plot(min_side=1), prediction.plot(min_side=1, min_score=0.99)
    assert drawn.size == without.size == (120, 60)
    assert (np.asarray(drawn) != np.asarray(without)).any()
    prediction.image = None
    with pytest.raises(ValueError, match="does not contain its image"):
        prediction.plot()


def test_predictions_keep_their_pixels(predictor, image):
    """Neither the next frame in the same memory nor a closed file changes what is drawn."""
    Image.fromarray(image).save(content := io.BytesIO(), "PNG")
    expected = torch.from_numpy(image.copy()).permute(2, 0, 1)
    frame, tensor = image.copy(), expected.clone()
    for given in (frame, tensor, Image.fromarray(image), content):
        prediction = predictor(given)
        if given is frame or given is tensor:
            given[...] = 7
        again = pickle.loads(pickle.dumps(prediction))
        assert torch.equal(prediction.image, expected)
        assert torch.equal(again.image, expected)
        assert again.plot(min_side=1).size == (120, 60)


def test_a_path_loads_the_predictor_of_a_checkpoint(tiny_config, image, tmp_path):
    """Predictor(path) equals from_checkpoint, with the threshold that training measured."""
    cfg = tiny_config("TEST.SCORE_THRESHOLD", 0.3, "INPUT.MIN_SIZE_TEST", 96)
    path = write_weights(cfg, tmp_path / "model.pth")
    one, other = Predictor(path), Predictor.from_checkpoint(path)
    assert (one.score_thresh, one.min_size, one.dtype) == (0.3, 96, other.dtype)
    assert other.score_thresh == 0.3
    assert Predictor(path, score_thresh=0.0).score_thresh == 0
    for key in ("TEST.SCORE_THRESHOLD", "MODEL.ROI_HEADS.SCORE_THRESH"):  # given, although 0
        assert Predictor.from_checkpoint(path, [key, 0.0]).score_thresh == 0
    assert build_options(tiny_config()).score_thresh == 0.5  # not measured
    one.score_thresh = other.score_thresh = 0.0
    assert torch.equal(one(image)["boxes"], other(image)["boxes"])


def test_a_long_image_that_becomes_small_is_mentioned_once(caplog):
    predictor = Predictor(BrightSquare(), min_size=64, max_size=96)
    predictor(np.full((64, 96, 3), 200, np.uint8))
    assert not caplog.messages
    for _ in range(2):
        predictor(np.full((60, 320, 3), 200, np.uint8))
    (message,) = caplog.messages
    assert "320 x 60 pixels is resized to 96 x 18, 0.28 times INPUT.MIN_SIZE_TEST" in message
    assert "INPUT.MAX_SIZE_TEST is 96" in message


@pytest.fixture
def detector(tiny_config):
    torch.manual_seed(0)
    model = build_model(tiny_config("MODEL.ROI_HEADS.SCORE_THRESH", 0.26)).eval()
    model.categories = [{"id": k, "name": str(k)} for k in (1, 2, 3)]
    return model


@pytest.mark.parametrize(("divisibility", "dtype"), [(32, None), (0, "bfloat16")])
def test_the_result_for_an_image_does_not_depend_on_the_others(detector, divisibility, dtype):
    detector.normalizer.divisibility = divisibility
    detector.roi_heads.box.score_thresh = 0.0
    model = optimize(detector, dtype) if dtype else detector
    predictor = Predictor(model, min_size=48, max_size=96)
    generator = np.random.default_rng(0)
    sizes = [(60, 120), (60, 60), (90, 40), (60, 118), (60, 120), (33, 47)]
    images = [generator.integers(0, 255, (*size, 3), dtype=np.uint8) for size in sizes]
    alone = [predictor(image) for image in images]
    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [2, 2, 5, 0]):
        for index, result in zip(order, predictor([images[k] for k in order]), strict=True):
            expected = alone[index]
            assert torch.equal(result["labels"], expected["labels"])
            torch.testing.assert_close(result["boxes"], expected["boxes"], rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(result["scores"], expected["scores"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["mask", "cascade", "retinanet"])
def test_a_lower_threshold_than_the_models_applies(kind, tiny_config, image):
    torch.manual_seed(0)
    model = build_model(family_config(kind, tiny_config)).eval()
    model.categories = [{"id": k, "name": str(k)} for k in range(1, model.num_classes)]
    owner = model if kind == "retinanet" else model.roi_heads.box
    owner.score_thresh, owner.recorder = 0.0, object()
    scores = Predictor(model, min_size=64)(image)["scores"]
    owner.score_thresh, low = scores[2].item(), scores[-1].item()
    own = Predictor(model, min_size=64)(image)["scores"]
    assert len(own) < len(scores)
    lower = Predictor(model, min_size=64, score_thresh=low * 0.999)
    assert len(lower(image)["scores"]) == len(scores)
    assert len(Predictor(model, min_size=64)(image)["scores"]) == len(own)  # unchanged
    assert {*map(id, lower.detector.parameters())} == {*map(id, model.parameters())}
    copied = lower.detector if kind == "retinanet" else lower.detector.roi_heads.box
    assert copied.recorder is owner.recorder  # such as the object of a hook


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_size": -5}, "min_size=-5: must be an integer of at least 1"),
        ({"min_size": 0}, "min_size=0"),
        ({"max_size": 99.5}, "max_size=99.5"),
        ({"score_thresh": 50}, r"score threshold 50: must be a number in 0\.\.1"),
        ({"score_thresh": math.nan}, "score threshold nan"),
        ({"score_thresh": "0.5"}, "score threshold '0.5'"),
        ({"min_size": True}, "min_size=True"),
    ],
)
def test_invalid_values_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Predictor(BrightSquare(), **arguments)
    with pytest.raises(ValueError, match="min_size"):
        View(0, 64)


def test_the_default_device_has_no_effect(detector, image):
    target = {"boxes": torch.tensor([[5.0, 5, 40, 40]]), "labels": torch.tensor([1]),
              "masks": torch.ones(1, 60, 120, dtype=torch.uint8)}  # fmt: skip
    pixels = torch.from_numpy(image).permute(2, 0, 1)
    expected = Predictor(detector, 48, score_thresh={"2": 0.0})(image)
    with torch.device("meta"):
        found = Predictor(detector, 48, score_thresh={"2": 0.0})(image)
        losses = detector.train()([pixels], [target])
    assert torch.equal(found["masks"], expected["masks"])
    assert all(loss.isfinite() for loss in losses.values())


def test_thresholds_of_categories(detector, image):
    everything = Predictor(detector, 48, score_thresh=0.0)(image)
    low = everything["scores"][everything["labels"] == 2].min().item()
    for thresh, kept in (
        ({"2": low}, (everything["labels"] == 2)),
        ({"2": low, "1": 1.0}, (everything["labels"] == 2)),
        ({"3": None}, (everything["labels"] == 3) & (everything["scores"] >= 0.2)),
    ):
        options = InferenceOptions(View(48, 1333), score_thresh=0.2)
        found = Predictor(detector, score_thresh=thresh, options=options)(image)
        assert torch.equal(found["boxes"], everything["boxes"][kept])
    nothing = Predictor(BrightSquare(), np.int64(48), score_thresh=np.float32(1.0))(image)
    assert nothing["boxes"].shape == (0, 4)
    assert nothing["masks"].shape == (0, 60, 120)
    for wrong in ({"4": 0.5}, {"1": 2}, {"1": math.nan}):
        with pytest.raises(ConfigError, match=r"threshold of category '.*model are 1, 2, 3"):
            Predictor(detector, score_thresh=wrong)


def test_wrappers_are_removed(detector, image):
    compiled: Any = torch.compile(detector, backend="eager")
    for wrapped in (nn.DataParallel(detector), compiled, nn.DataParallel(compiled)):
        assert Predictor(wrapped).model is detector
        lower = Predictor(wrapped, min_size=48, score_thresh=0.0)  # copies parts of the model
        assert len(lower(image)["scores"]) == 20
        assert detector.roi_heads.box.score_thresh == 0.26
    average = torch.optim.swa_utils.AveragedModel(detector)
    assert Predictor(average).model is average.module
    assert type(optimize(compiled)) is type(optimize(average)) is type(detector)
    for other in (nn.Linear(2, 2), Predictor(detector)):
        with pytest.raises(TypeError, match=f"a model of build_model, not {type(other).__name__}"):
            Predictor(other)


def test_predictors_can_be_pickled(detector, image):
    options = InferenceOptions(views=[View(64, 99, flip=True)], tile=64, score_thresh=0.0)
    for model in (detector, optimize(detector, "bfloat16")):
        predictor = Predictor(model, options=options)
        torch.save(copy.deepcopy(predictor), file := io.BytesIO())
        file.seek(0)
        expected = predictor(image)["scores"]
        for again in (
            pickle.loads(pickle.dumps(predictor, 2)),
            torch.load(file, weights_only=False),
        ):
            assert torch.equal(again(image)["scores"], expected)


@pytest.mark.parametrize("views", [(), (View(64, 200), View(64, 200, flip=True))])
def test_extra_outputs_of_each_detection(tiny_config, image, views):
    outputs = ("class_scores", "features")
    keys = ("MODEL.ROI_HEADS.SCORE_THRESH", 0.0, "TEST.EXTRA_OUTPUTS", outputs)
    cfg = tiny_config(*keys)
    model = build_model(cfg).eval()
    model.categories = [{"id": k, "name": str(k)} for k in (1, 2, 3)]
    options = InferenceOptions(View(64, 1333), views)
    prediction = Predictor(model, options=options)(image)
    count = len(prediction["boxes"])
    assert count > 1
    assert prediction["scores"].tolist() == sorted(prediction["scores"].tolist(), reverse=True)
    assert prediction["class_scores"].shape == (count, 3)
    assert prediction["features"].shape == (count, cfg.MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM)
    assert prediction.extra_fields.keys() == set(outputs)
    assert not Predictor(BrightSquare())(image).extra_fields
