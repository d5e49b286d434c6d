import pytest
import torch

from detlite.modeling.build import build_model

NO_PROPOSALS = ("MODEL.RPN.MIN_SIZE", 10**6)


ALL_SCORES = ("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)


def test_targets_are_not_modified(tiny_config, make_batch):
    images, targets = make_batch(2, 1)
    before = [{name: torch.as_tensor(value).clone() for name, value in t.items()} for t in targets]
    build_model(tiny_config()).train()(images, targets)
    for target, old in zip(targets, before, strict=True):
        assert target.keys() == old.keys()
        assert all(torch.equal(torch.as_tensor(target[name]), old[name]) for name in old)


def test_invalid_inputs(tiny_config, make_batch):
    model = build_model(tiny_config()).train()
    images, targets = make_batch(1)
    with pytest.raises(ValueError, match="training needs targets"):
        model(images)
    with pytest.raises(TypeError, match="images must be a list"):
        model(images[0], targets)
    with pytest.raises(TypeError, match=r"images\[0\]"):
        model([images[0].long()], targets)
    with pytest.raises(ValueError, match=r"targets\[0\]\['labels'\]"):
        model(images, [{**targets[0], "labels": torch.tensor([4])}])
    with pytest.raises(ValueError, match="images is empty"):
        model([], [])
    with pytest.raises(ValueError, match="images is empty"):
        model.eval()([])


def check_detections(result, image, limit=20, classes=4) -> None:
    height, width = image.shape[1:]
    count = len(result["boxes"])
    assert result.keys() == {"boxes", "labels", "scores", "masks"}
    assert count <= limit
    assert (result["boxes"].dtype, result["boxes"].shape) == (torch.float32, (count, 4))
    assert (result["scores"].dtype, result["scores"].shape) == (torch.float32, (count,))
    assert (result["labels"].dtype, result["labels"].shape) == (torch.int64, (count,))
    assert (result["masks"].dtype, result["masks"].shape) == (
        torch.float32,
        (count, 1, height, width),
    )
    assert (result["scores"].diff() <= 0).all()
    assert ((result["labels"] >= 1) & (result["labels"] < classes)).all()
    boxes = result["boxes"]
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert (boxes >= 0).all()
    assert (boxes[:, 0::2] <= width).all()
    assert (boxes[:, 1::2] <= height).all()
    assert ((result["masks"] >= 0) & (result["masks"] <= 1 + 1e-6)).all()
    assert not any(value.requires_grad for value in result.values())


@pytest.mark.parametrize("c4", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_format_of_detections(tiny_config, make_batch, c4, autocast):
    model = build_model(tiny_config(*ALL_SCORES, c4=c4)).eval()
    images, _ = make_batch(2, 1, 0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        detections = model(images)
    assert len(detections) == 3
    for result, image in zip(detections, images, strict=True):
        check_detections(result, image)
        assert len(result["boxes"]) == 20


@pytest.mark.parametrize(
    "opts", [NO_PROPOSALS, ("MODEL.ROI_HEADS.SCORE_THRESH", 1.0)], ids=["proposals", "scores"]
)
@pytest.mark.parametrize("c4", [False, True])
def test_format_of_empty_detections(tiny_config, make_batch, c4, opts):
    model = build_model(tiny_config(*opts, c4=c4)).eval()
    images, _ = make_batch(1, 2)
    for result, image in zip(model(images), images, strict=True):
        check_detections(result, image, limit=0)
    assert model.detect(images)[0].mask_probs.shape[0] == 0


def test_detect_equals_forward_without_pasting(tiny_config, make_batch):
    model = build_model(tiny_config(*ALL_SCORES)).eval()
    images, _ = make_batch(2, 1)
    for compact, full in zip(model.detect(images), model(images), strict=True):
        assert compact.mask_probs.shape == (20, 28, 28)
        assert compact.keypoints is compact.keypoint_scores is None
        assert compact.valid.all()
        for name in ("boxes", "labels", "scores"):
            assert torch.equal(getattr(compact, name), full[name])


@pytest.mark.parametrize("c4", [False, True])
def test_batched_images_are_detected_like_single_images(tiny_config, make_batch, c4):
    """The images have the same size, because padding would change results slightly."""
    model = build_model(tiny_config(*ALL_SCORES, c4=c4)).eval()
    images = [torch.rand(3, 64, 96) for _ in range(3)]
    for together, image in zip(model(images), images, strict=True):
        (alone,) = model([image])
        for name in together:
            torch.testing.assert_close(together[name], alone[name], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("bgr255", [False, True])
def test_float_and_uint8_images_agree(tiny_config, make_batch, bgr255):
    scale = 255 if bgr255 else 1
    keys = ("INPUT.TO_BGR255", bgr255, "INPUT.PIXEL_MEAN", [0.4 * scale] * 3,
            "INPUT.PIXEL_STD", [0.2 * scale] * 3)  # fmt: skip
    model = build_model(tiny_config(*ALL_SCORES, *keys)).eval()
    images, _ = make_batch(2, 1)
    ours, theirs = model(images), model([image / 255 for image in images])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a["boxes"], b["boxes"], atol=1e-2, rtol=1e-3)
        torch.testing.assert_close(a["scores"], b["scores"], atol=1e-4, rtol=1e-3)


def test_images_may_be_strided(tiny_config):
    model = build_model(tiny_config(*ALL_SCORES)).eval()
    image = torch.rand(64, 96, 3).permute(2, 0, 1)
    for a, b in zip(model([image]), model([image.contiguous()]), strict=True):
        assert torch.equal(a["boxes"], b["boxes"])


def test_attributes_of_a_new_model(tiny_config):
    model = build_model(tiny_config("MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS_THRESHOLD", 0.25))
    assert model.categories == []
    assert model.device == torch.device("cpu")
    assert model.num_classes == 4
    assert model.mask_threshold == 0.25
