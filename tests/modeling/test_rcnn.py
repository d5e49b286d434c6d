"""Whole two-stage detectors: training, evaluation and construction."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detlite.config import ConfigError, load_config
from detlite.modeling.backbone import BACKBONES, Backbone
from detlite.modeling.build import build_model, torch_device
from detlite.structures import boxes as box_ops
from detlite.structures.masks.packed import PackedMasks

LOSSES = {"loss_objectness", "loss_rpn_box", "loss_classifier", "loss_box", "loss_mask"}
NO_PROPOSALS = ("MODEL.RPN.MIN_SIZE", 10**6)
ALL_SCORES = ("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
HEADS = ("ROI_BOX_HEAD", "ROI_MASK_HEAD")


def check_losses(
    model: nn.Module, losses: dict[str, torch.Tensor], names: set[str] = LOSSES
) -> None:
    """Check that losses are scalar, finite, and connected to every trainable parameter."""
    assert losses.keys() == names
    for value in losses.values():
        assert value.shape == ()
        assert value.isfinite()
    sum(losses.values()).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def check_buffers(model: nn.Module) -> None:
    for name, buffer in model.named_buffers():
        assert buffer.isfinite().all(), name


# ---- training


@pytest.mark.parametrize("opts", [(), NO_PROPOSALS], ids=["proposals", "no proposals"])
@pytest.mark.parametrize("counts", [(3, 1), (2, 0), (0, 2), (0, 0)])
@pytest.mark.parametrize("c4", [False, True])
def test_losses_are_finite_and_connected(tiny_config, make_batch, c4, counts, opts):
    model = build_model(tiny_config(*opts, c4=c4)).train()
    check_losses(model, model(*make_batch(*counts)))


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("counts", [(2, 1), (0, 0)])
@pytest.mark.parametrize("opts", [(), NO_PROPOSALS], ids=["proposals", "no proposals"])
def test_batch_norm_of_empty_batches_stays_finite(tiny_config, make_batch, separate, counts, opts):
    keys = (
        "MODEL.RESNETS.NORM", "BN",
        "MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", not separate,
    )  # fmt: skip
    model = build_model(tiny_config(*keys, *opts, c4=True)).train()
    check_losses(model, model(*make_batch(*counts)))
    check_buffers(model)


@pytest.mark.parametrize("kind", ["ROIAlign", "ROIAlignV2", "ROIPool"])
@pytest.mark.parametrize("c4", [False, True])
def test_every_pooler_trains(tiny_config, make_batch, kind, c4):
    opts = [item for head in HEADS for item in (f"MODEL.{head}.POOLER_TYPE", kind)]
    model = build_model(tiny_config(*opts, c4=c4)).train()
    check_losses(model, model(*make_batch(2, 1)))


@pytest.mark.parametrize("opts", [(), NO_PROPOSALS], ids=["proposals", "no proposals"])
@pytest.mark.parametrize("c4", [False, True])
def test_autocast_trains_and_keeps_losses_in_float32(tiny_config, make_batch, c4, opts):
    model = build_model(tiny_config(*opts, c4=c4)).train()
    with torch.autocast("cpu", torch.bfloat16):
        losses = model(*make_batch(2, 0))
    assert all(value.dtype == torch.float32 for value in losses.values())
    check_losses(model, losses)


def test_class_agnostic_regression_trains(tiny_config, make_batch):
    model = build_model(tiny_config("MODEL.CLS_AGNOSTIC_BBOX_REG", True)).train()
    check_losses(model, model(*make_batch(2, 1)))


NORMED = ("RESNETS", "FPN", *HEADS)


@pytest.mark.parametrize("norm", ["BN", "SyncBN", "GN", "LN"])
@pytest.mark.parametrize("counts", [(2, 1), (0, 0)])
def test_norms_in_all_parts_train(tiny_config, make_batch, norm, counts):
    opts = [item for key in NORMED for item in (f"MODEL.{key}.NORM", norm)]
    extractor = ("MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "FPNXconv1fcFeatureExtractor")
    convs = ("MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM", 16, "MODEL.RPN.NUM_CONVS", 2)
    few = () if any(counts) else NO_PROPOSALS
    model = build_model(tiny_config(*opts, *extractor, *convs, *few)).train()
    check_losses(model, model(*make_batch(*counts)))
    check_buffers(model)


def test_faster_rcnn_trains_without_masks(tiny_config, make_batch):
    model = build_model(tiny_config("MODEL.MASK_ON", False)).train()
    images, targets = make_batch(2, 1)
    for target in targets:
        del target["masks"]
    check_losses(model, model(images, targets), LOSSES - {"loss_mask"})
    with torch.no_grad():
        (result, *_) = model.eval()(images)
    assert result.keys() == {"boxes", "labels", "scores"}


def test_frozen_parts_have_no_gradient(tiny_config, make_batch):
    model = build_model(tiny_config("MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 2)).train()
    check_losses(model, model(*make_batch(2)))
    frozen = [*model.backbone.body.stem.parameters(), *model.backbone.body.res2.parameters()]
    assert frozen
    assert all(p.grad is None for p in frozen)


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


def test_model_overfits_one_image(tiny_config, make_batch):
    model = build_model(tiny_config("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 64)).train()
    images, targets = make_batch(2)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    history = []
    for _ in range(100):
        losses = model(images, targets)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        history.append(torch.stack([losses[name].detach() for name in sorted(LOSSES)]))
    first, last = (torch.stack(part).mean(0) for part in (history[:5], history[-5:]))
    assert last.sum() < 0.5 * first.sum()
    for name in ("loss_objectness", "loss_classifier", "loss_mask"):
        assert last[sorted(LOSSES).index(name)] < 0.5 * first[sorted(LOSSES).index(name)], name
    (result,) = model.eval()(images)
    for box, label, mask in zip(
        *(targets[0][name] for name in ("boxes", "labels", "masks")), strict=True
    ):
        best = torch.where(result["labels"] == label)[0][0]
        assert box_ops.iou(box[None], result["boxes"][best][None]).item() > 0.5
        pixels = result["masks"][best, 0] > 0.5
        assert (pixels & (mask > 0)).sum() > 0.5 * (pixels | (mask > 0)).sum()


# ---- evaluation


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


def test_memory_format_has_no_effect_on_detections(tiny_config, make_batch):
    formats = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
    images, _ = make_batch(2)
    results = []
    for name, memory_format in formats.items():
        torch.manual_seed(0)
        model = build_model(tiny_config(*ALL_SCORES, "MODEL.MEMORY_FORMAT", name)).eval()
        tensors = [p for p in model.parameters() if p.ndim == 4 and min(p.shape) > 1]
        batch = model.normalizer(images).pixels
        tensors += [batch, model.backbone(batch)[0]]
        assert all(x.is_contiguous(memory_format=memory_format) for x in tensors)
        results += model(images)
    last, first = results
    torch.testing.assert_close(last["boxes"], first["boxes"], atol=1e-2, rtol=1e-3)
    torch.testing.assert_close(last["scores"], first["scores"], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("c4", [False, True])
def test_state_dict_round_trip(tiny_config, make_batch, c4):
    cfg = tiny_config(*ALL_SCORES, c4=c4)
    model, other = build_model(cfg).eval(), build_model(cfg).eval()
    images, _ = make_batch(2)
    (expected,) = model(images)
    assert not torch.equal(other(images)[0]["scores"], expected["scores"])
    other.load_state_dict(model.state_dict())
    (result,) = other(images)
    for name in expected:
        assert torch.equal(result[name], expected[name])


# ---- padding

CASCADE = ("MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6, 0.7), "MODEL.CLS_AGNOSTIC_BBOX_REG", True)
KINDS = pytest.mark.parametrize(
    ("opts", "c4"), [((), False), ((), True), (CASCADE, False)], ids=["FPN", "C4", "cascade"]
)


@KINDS
@torch.no_grad()
def test_images_of_a_batch_are_independent(tiny_config, make_batch, opts, c4):
    model = build_model(tiny_config(*ALL_SCORES, *opts, c4=c4)).eval()
    images, _ = make_batch(2, 1, 0)
    batch = model.normalizer(images)
    together = model.predict(batch).per_image()
    for number, result in enumerate(together):
        (alone,) = model.predict(batch[number : number + 1]).per_image()
        assert len(result.boxes) == 20
        for name in ("boxes", "scores", "labels", "mask_probs"):
            torch.testing.assert_close(
                getattr(result, name), getattr(alone, name), atol=1e-4, rtol=1e-4
            )


@pytest.mark.parametrize("kept", [7, 0])
@KINDS
@torch.no_grad()
def test_static_shapes_with_few_detections(tiny_config, make_batch, opts, c4, kept):
    model = build_model(tiny_config(*ALL_SCORES, *opts, c4=c4)).eval()
    images, _ = make_batch(2, 1)
    batch = model.normalizer(images)
    box = model.roi_heads.box
    threshold = model.predict(batch).scores[0, kept].item()
    for head in getattr(box, "stages", [box]):
        head.score_thresh = threshold
    dynamic = model.predict(batch).per_image()
    assert len(dynamic[0].boxes) == kept
    model.static_shapes = True
    padded = model.predict(batch)
    assert padded.boxes.shape == (2, 20, 4)
    assert padded.mask_probs.shape[:2] == (2, 20)
    for result, expected in zip(padded.per_image(), dynamic, strict=True):
        for name in ("boxes", "scores", "labels", "mask_probs"):
            torch.testing.assert_close(getattr(result, name), getattr(expected, name))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_training_on_empty_masks(tiny_config, make_batch, dtype):
    model = build_model(tiny_config()).train()
    images, targets = make_batch(2)
    targets[0]["masks"] = torch.zeros_like(targets[0]["masks"], dtype=dtype)
    losses = model(images, targets)
    check_losses(model, losses)
    assert losses["loss_mask"] > 0


def test_mask_formats_give_the_same_losses(tiny_config, make_batch):
    model = build_model(tiny_config()).train()
    images, targets = make_batch(3)
    masks, losses = targets[0]["masks"], []
    for inputs in (masks, masks.bool(), 255 * masks, PackedMasks.from_bitmaps(masks)):
        torch.manual_seed(0)
        losses.append(model(images, [{**targets[0], "masks": inputs}]))
    for other in losses[1:]:
        assert all(torch.equal(losses[0][name], other[name]) for name in losses[0])


# ---- building


def test_attributes_of_a_new_model(tiny_config):
    model = build_model(tiny_config("MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS_THRESHOLD", 0.25))
    assert model.categories == []
    assert model.device == torch.device("cpu")
    assert model.num_classes == 4
    assert model.mask_threshold == 0.25


def test_seed_determines_the_weights(tiny_config):
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(build_model(tiny_config()).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_size_divisibility(tiny_config):
    model = build_model(tiny_config("DATALOADER.SIZE_DIVISIBILITY", 32))
    assert model.normalizer([torch.zeros(3, 33, 64)]).pixels.shape[-2:] == (64, 64)


ABSENT = [name for name in ("mps", "xpu") if not torch.get_device_module(name).is_available()]


@pytest.mark.parametrize("name", ["nonsense", "cuda:9999", "privateuseone", *ABSENT])
def test_unavailable_device(tiny_config, name):
    with pytest.raises(ConfigError, match=r"MODEL\.DEVICE"):
        build_model(tiny_config("MODEL.DEVICE", name))


def test_automatic_device():
    assert torch_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_unknown_architecture(tiny_config):
    with pytest.raises(
        ConfigError, match=r"MODEL\.META_ARCHITECTURE: unknown detector 'RetinalNet'"
    ):
        build_model(tiny_config("MODEL.META_ARCHITECTURE", "RetinalNet"))


class _OneMap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, stride=8, padding=1)

    def forward(self, x):
        return [self.conv(x)]


@pytest.fixture
def custom_backbone(monkeypatch):
    """Register a backbone with one map of stride 8."""

    def build(cfg):
        return Backbone(_OneMap(), nn.Identity(), 16, strides=(8,), pooled=1)

    monkeypatch.setitem(BACKBONES._builders, "one-map", build)
    return "one-map"


CUSTOM_HEADS = (
    "MODEL.DEVICE", "cpu", "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "FPN2MLPFeatureExtractor",
    "MODEL.ROI_BOX_HEAD.PREDICTOR", "FPNPredictor", "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 8,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 4,
)  # fmt: skip


def test_custom_backbone_trains(custom_backbone, make_batch):
    cfg = load_config(None, ["MODEL.BACKBONE.CONV_BODY", custom_backbone, *CUSTOM_HEADS])
    model = build_model(cfg).train()
    assert model.rpn.anchor_generator.strides == (8,)
    check_losses(model, model(*make_batch(2, 1)), LOSSES - {"loss_mask"})


def test_anchors_of_a_custom_backbone(custom_backbone):
    sizes = ["MODEL.RPN.ANCHOR_SIZES", (32, 64)]
    cfg = load_config(None, ["MODEL.BACKBONE.CONV_BODY", custom_backbone, *CUSTOM_HEADS, *sizes])
    assert build_model(cfg).rpn.anchor_generator.per_cell == [6]  # a single map gets all sizes
