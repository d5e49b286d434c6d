"""The whole model: its contract in training and evaluation, and every edge of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detlite.config import ConfigError, load_config
from detlite.modeling.backbone import BACKBONES, Backbone
from detlite.modeling.build import build_model, torch_device
from detlite.modeling.preprocessing import prepare_targets
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.padding import fixed_shapes

LOSSES = {"loss_objectness", "loss_rpn_box", "loss_classifier", "loss_box", "loss_mask"}
NO_PROPOSALS = ("MODEL.RPN.MIN_SIZE", 10**6)
EVERY_SCORE = ("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
HEADS = ("ROI_BOX_HEAD", "ROI_MASK_HEAD")


def check_losses(
    model: nn.Module, losses: dict[str, torch.Tensor], names: set[str] = LOSSES
) -> None:
    """All there, scalar and finite; after a step back every trained parameter has a gradient."""
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
def test_batch_norm_survives_empty_batches(tiny_config, make_batch, separate, counts, opts):
    keys = (
        "MODEL.RESNETS.NORM",
        "BN",
        "MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR",
        not separate,
    )
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
def test_norms_everywhere_train_with_and_without_proposals(tiny_config, make_batch, norm, counts):
    opts = [item for key in NORMED for item in (f"MODEL.{key}.NORM", norm)]
    extractor = ("MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "FPNXconv1fcFeatureExtractor")
    convs = ("MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM", 16, "MODEL.RPN.NUM_CONVS", 2)
    few = () if any(counts) else NO_PROPOSALS
    model = build_model(tiny_config(*opts, *extractor, *convs, *few)).train()
    check_losses(model, model(*make_batch(*counts)))
    check_buffers(model)


def test_faster_rcnn_needs_no_masks(tiny_config, make_batch):
    model = build_model(tiny_config("MODEL.MASK_ON", False)).train()
    images, targets = make_batch(2, 1)
    for target in targets:
        del target["masks"]
    check_losses(model, model(images, targets), LOSSES - {"loss_mask"})
    with torch.no_grad():
        (found, *_) = model.eval()(images)
    assert found.keys() == {"boxes", "labels", "scores"}


def test_frozen_parts_get_no_gradient(tiny_config, make_batch):
    model = build_model(tiny_config("MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 2)).train()
    check_losses(model, model(*make_batch(2)))
    frozen = [*model.backbone.body.stem.parameters(), *model.backbone.body.res2.parameters()]
    assert frozen
    assert all(p.grad is None for p in frozen)


def test_targets_are_left_as_they_were(tiny_config, make_batch):
    images, targets = make_batch(2, 1)
    before = [{name: torch.as_tensor(value).clone() for name, value in t.items()} for t in targets]
    build_model(tiny_config()).train()(images, targets)
    for target, old in zip(targets, before, strict=True):
        assert target.keys() == old.keys()
        assert all(torch.equal(torch.as_tensor(target[name]), old[name]) for name in old)


def test_bad_input_is_refused(tiny_config, make_batch):
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


def test_one_picture_is_learnt(tiny_config, make_batch):
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
    (found,) = model.eval()(images)
    for box, label, mask in zip(
        *(targets[0][name] for name in ("boxes", "labels", "masks")), strict=True
    ):
        best = torch.where(found["labels"] == label)[0][0]
        assert box_ops.iou(box[None], found["boxes"][best][None]).item() > 0.5
        pixels = found["masks"][best, 0] > 0.5
        assert (pixels & (mask > 0)).sum() > 0.5 * (pixels | (mask > 0)).sum()


# ---- evaluation


def check_detections(found, image, limit=20, classes=4) -> None:
    height, width = image.shape[1:]
    count = len(found["boxes"])
    assert found.keys() == {"boxes", "labels", "scores", "masks"}
    assert count <= limit
    assert (found["boxes"].dtype, found["boxes"].shape) == (torch.float32, (count, 4))
    assert (found["scores"].dtype, found["scores"].shape) == (torch.float32, (count,))
    assert (found["labels"].dtype, found["labels"].shape) == (torch.int64, (count,))
    assert (found["masks"].dtype, found["masks"].shape) == (
        torch.float32,
        (count, 1, height, width),
    )
    assert (found["scores"].diff() <= 0).all()
    assert ((found["labels"] >= 1) & (found["labels"] < classes)).all()
    boxes = found["boxes"]
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert (boxes >= 0).all()
    assert (boxes[:, 0::2] <= width).all()
    assert (boxes[:, 1::2] <= height).all()
    assert ((found["masks"] >= 0) & (found["masks"] <= 1 + 1e-6)).all()
    assert not any(value.requires_grad for value in found.values())


@pytest.mark.parametrize("c4", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_detections_keep_the_contract(tiny_config, make_batch, c4, autocast):
    model = build_model(tiny_config(*EVERY_SCORE, c4=c4)).eval()
    images, _ = make_batch(2, 1, 0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        detections = model(images)
    assert len(detections) == 3
    for found, image in zip(detections, images, strict=True):
        check_detections(found, image)
        assert len(found["boxes"]) == 20


@pytest.mark.parametrize(
    "opts", [NO_PROPOSALS, ("MODEL.ROI_HEADS.SCORE_THRESH", 1.0)], ids=["proposals", "scores"]
)
@pytest.mark.parametrize("c4", [False, True])
def test_empty_detections_keep_the_contract(tiny_config, make_batch, c4, opts):
    model = build_model(tiny_config(*opts, c4=c4)).eval()
    images, _ = make_batch(1, 2)
    for found, image in zip(model(images), images, strict=True):
        check_detections(found, image, limit=0)
    assert model.detect(images)[0].mask_probs.shape[0] == 0


def test_detect_is_forward_without_pasting(tiny_config, make_batch):
    model = build_model(tiny_config(*EVERY_SCORE)).eval()
    images, _ = make_batch(2, 1)
    for compact, full in zip(model.detect(images), model(images), strict=True):
        assert compact.mask_probs.shape == (20, 28, 28)
        assert compact.keypoints is compact.keypoint_scores is None
        assert compact.valid.all()
        for name in ("boxes", "labels", "scores"):
            assert torch.equal(getattr(compact, name), full[name])


@pytest.mark.parametrize("c4", [False, True])
def test_an_image_is_detected_alike_alone_and_in_a_batch(tiny_config, make_batch, c4):
    """Up to what its padding changes: here every image has the size of the batch."""
    model = build_model(tiny_config(*EVERY_SCORE, c4=c4)).eval()
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
    model = build_model(tiny_config(*EVERY_SCORE, *keys)).eval()
    images, _ = make_batch(2, 1)
    ours, theirs = model(images), model([image / 255 for image in images])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a["boxes"], b["boxes"], atol=1e-2, rtol=1e-3)
        torch.testing.assert_close(a["scores"], b["scores"], atol=1e-4, rtol=1e-3)


def test_strided_images_are_taken(tiny_config):
    """As an array [H, W, 3] turned to [3, H, W] is."""
    model = build_model(tiny_config(*EVERY_SCORE)).eval()
    image = torch.rand(64, 96, 3).permute(2, 0, 1)
    for a, b in zip(model([image]), model([image.contiguous()]), strict=True):
        assert torch.equal(a["boxes"], b["boxes"])


def test_memory_format_does_not_change_the_result(tiny_config, make_batch):
    formats = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
    images, _ = make_batch(2)
    results = []
    for name, memory_format in formats.items():
        torch.manual_seed(0)
        model = build_model(tiny_config(*EVERY_SCORE, "MODEL.MEMORY_FORMAT", name)).eval()
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
    cfg = tiny_config(*EVERY_SCORE, c4=c4)
    model, other = build_model(cfg).eval(), build_model(cfg).eval()
    images, _ = make_batch(2)
    (wanted,) = model(images)
    assert not torch.equal(other(images)[0]["scores"], wanted["scores"])
    other.load_state_dict(model.state_dict())
    (found,) = other(images)
    for name in wanted:
        assert torch.equal(found[name], wanted[name])


# ---- padding

CASCADE = ("MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6, 0.7), "MODEL.CLS_AGNOSTIC_BBOX_REG", True)
# All are sampled, so that nothing depends on chance.
EVERYTHING = ("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 1000, "MODEL.RPN.BATCH_SIZE_PER_IMAGE", 10**5)
KINDS = pytest.mark.parametrize(
    ("opts", "c4"), [((), False), ((), True), (CASCADE, False)], ids=["FPN", "C4", "cascade"]
)


@KINDS
@torch.no_grad()
def test_what_else_is_in_the_batch_changes_no_detection(tiny_config, make_batch, opts, c4):
    model = build_model(tiny_config(*EVERY_SCORE, *opts, c4=c4)).eval()
    images, _ = make_batch(2, 1, 0)
    batch = model.normalizer(images)
    together = model.predict(batch).per_image()
    for number, found in enumerate(together):
        (alone,) = model.predict(batch[number : number + 1]).per_image()
        assert len(found.boxes) == 20
        for name in ("boxes", "scores", "labels", "mask_probs"):
            torch.testing.assert_close(
                getattr(found, name), getattr(alone, name), atol=1e-4, rtol=1e-4
            )


@pytest.mark.parametrize("kept", [20, 7, 0])
@KINDS
@torch.no_grad()
def test_fixed_shapes_change_no_detection(tiny_config, make_batch, opts, c4, kept):
    model = build_model(tiny_config(*EVERY_SCORE, *opts, c4=c4)).eval()
    images, _ = make_batch(2, 1)
    batch = model.normalizer(images)
    if kept < 20:
        box = model.roi_heads.box
        threshold = model.predict(batch).scores[0, kept].item()  # what comes before is above it
        for head in getattr(box, "stages", [box]):
            head.score_thresh = threshold
    varying = model.predict(batch).per_image()
    assert len(varying[0].boxes) == kept
    with fixed_shapes():
        padded = model.predict(batch)
    assert padded.boxes.shape == (2, 20, 4)
    assert padded.mask_probs.shape[:2] == (2, 20)
    for found, wanted in zip(padded.per_image(), varying, strict=True):
        for name in ("boxes", "scores", "labels", "mask_probs"):
            torch.testing.assert_close(getattr(found, name), getattr(wanted, name))


@pytest.mark.parametrize("counts", [(3, 1), (2, 0), (0, 0)])
@KINDS
def test_fixed_shapes_and_padding_change_no_step(tiny_config, make_batch, opts, c4, counts):
    model = build_model(tiny_config(*EVERYTHING, *opts, c4=c4)).train()
    images, targets = make_batch(*counts)
    batch = model.normalizer(images)
    truth = prepare_targets(targets, images, 4, model.needs)
    packed = [PackedMasks.from_bitmaps(target["masks"]) for target in targets]
    padded = GroundTruth(
        F.pad(truth.boxes, (0, 0, 0, 4)), F.pad(truth.labels, (0, 4)),
        PackedMasks.collate(packed, truth.labels.shape[1] + 4),
    )  # fmt: skip

    def step(truth):
        model.zero_grad()
        losses = model.losses(batch, truth)
        sum(losses.values()).backward()
        return losses, {name: p.grad for name, p in model.named_parameters() if p.requires_grad}

    wanted = step(truth)
    assert all(gradient is not None for gradient in wanted[1].values())
    torch.testing.assert_close(step(padded), wanted, atol=1e-5, rtol=1e-3)
    with fixed_shapes():
        torch.testing.assert_close(step(padded), wanted, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_masks_without_a_pixel_are_learnt(tiny_config, make_batch, dtype):
    model = build_model(tiny_config()).train()
    images, targets = make_batch(2)
    targets[0]["masks"] = torch.zeros_like(targets[0]["masks"], dtype=dtype)
    losses = model(images, targets)
    check_losses(model, losses)
    assert losses["loss_mask"] > 0


def test_bitmaps_of_any_type_are_as_run_lengths(tiny_config, make_batch):
    model = build_model(tiny_config()).train()
    images, targets = make_batch(3)
    masks, losses = targets[0]["masks"], []
    for given in (masks, masks.bool(), 255 * masks, PackedMasks.from_bitmaps(masks)):
        torch.manual_seed(0)
        losses.append(model(images, [{**targets[0], "masks": given}]))
    for other in losses[1:]:
        assert all(torch.equal(losses[0][name], other[name]) for name in losses[0])


# ---- building


def test_fresh_model_knows_itself(tiny_config):
    model = build_model(tiny_config("MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS_THRESHOLD", 0.25))
    assert model.categories == []
    assert model.device == torch.device("cpu")
    assert model.num_classes == 4
    assert model.mask_threshold == 0.25


def test_seed_decides_the_weights(tiny_config):
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(build_model(tiny_config()).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_padding_follows_the_divisibility(tiny_config):
    model = build_model(tiny_config("DATALOADER.SIZE_DIVISIBILITY", 32))
    assert model.normalizer([torch.zeros(3, 33, 64)]).pixels.shape[-2:] == (64, 64)


ABSENT = [name for name in ("mps", "xpu") if not torch.get_device_module(name).is_available()]


@pytest.mark.parametrize("name", ["nonsense", "cuda:9999", "privateuseone", *ABSENT])
def test_impossible_device(tiny_config, name):
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
def own_backbone(monkeypatch):
    """A registered backbone with one map of stride 8."""

    def build(cfg):
        return Backbone(_OneMap(), nn.Identity(), 16, strides=(8,), pooled=1)

    monkeypatch.setitem(BACKBONES._builders, "one-map", build)
    return "one-map"


OWN_HEADS = (
    "MODEL.DEVICE", "cpu", "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "FPN2MLPFeatureExtractor",
    "MODEL.ROI_BOX_HEAD.PREDICTOR", "FPNPredictor", "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 8,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 4,
)  # fmt: skip


def test_own_backbone_trains(own_backbone, make_batch):
    cfg = load_config(None, ["MODEL.BACKBONE.CONV_BODY", own_backbone, *OWN_HEADS])
    model = build_model(cfg).train()
    assert model.rpn.anchor_generator.strides == (8,)
    check_losses(model, model(*make_batch(2, 1)), LOSSES - {"loss_mask"})


def test_anchors_for_other_levels_than_an_own_backbone_has(own_backbone):
    sizes = ["MODEL.RPN.ANCHOR_SIZES", (32, 64)]
    cfg = load_config(None, ["MODEL.BACKBONE.CONV_BODY", own_backbone, *OWN_HEADS, *sizes])
    assert build_model(cfg).rpn.anchor_generator.per_cell == [6]  # one map takes all sizes
