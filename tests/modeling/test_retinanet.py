import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import clip_boxes_to_image, sigmoid_focal_loss

from detlite.modeling.backbone.fpn import FPN, P6P7
from detlite.modeling.boxes.matcher import IGNORE, Matcher
from detlite.modeling.build import build_model
from detlite.modeling.retinanet import RetinaNet, RetinaNetHead
from detlite.structures import boxes as box_ops
from tests.builders import padded_gt, tiny_config
from tests.modeling.family import RETINANET

TINY = {
    **RETINANET,
    "MODEL.RETINANET.INFERENCE_TH": 0.05,
    "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": 100,
    "MODEL.RETINANET.NUM_CONVS": 1,
    "MODEL.RETINANET.ANCHOR_SIZES": (16, 32, 64, 128, 256),
    "DATALOADER.SIZE_DIVISIBILITY": 32,
}
SIZES = [(64, 96), (60, 80)]


def make(*override: str, **changes) -> RetinaNet:
    named = {f"MODEL.RETINANET.{name}": value for name, value in changes.items()}
    named["MODEL.CONVENTION_OVERRIDE"] = override
    opts = [item for pair in {**TINY, **named}.items() for item in pair]
    model = build_model(tiny_config(*opts))
    assert isinstance(model, RetinaNet)
    return model


def make_images() -> list[Tensor]:
    return [torch.rand(3, *size) for size in SIZES]


def truth() -> list[dict[str, Tensor]]:
    return [
        {
            "boxes": torch.tensor([[8.0, 8, 40, 50], [50, 20, 90, 60]]),
            "labels": torch.tensor([3, 1]),
        },
        {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)},
    ]


def test_initial_scores_are_the_prior():
    head = RetinaNetHead(8, 3, 5, num_convs=2, norm=None, prior=0.02)
    logits, deltas = head([torch.zeros(2, 8, 4, 6), torch.zeros(2, 8, 2, 3)])
    assert [x.shape for x in logits] == [(2, 72, 5), (2, 18, 5)]
    assert [x.shape for x in deltas] == [(2, 72, 4), (2, 18, 4)]
    torch.testing.assert_close(logits[0].sigmoid(), torch.full((2, 72, 5), 0.02))


@pytest.mark.parametrize("norm", ["BN", "SyncBN"])
def test_batch_norm_has_statistics_per_level(norm):
    model = make(NORM=norm, NUM_CONVS=2).train()
    features = [torch.randn(2, 16, side, side) + side for side in (16, 8, 4, 2, 1)]
    model.head(features)
    convs, norms = zip(*((block[0], block[1]) for block in model.head.cls_tower), strict=True)
    for level, feature in enumerate(features):
        expected = 0.1 * convs[0](feature).mean(dim=(0, 2, 3))
        torch.testing.assert_close(norms[0][level].running_mean, expected)
    for parameter in norms[0].parameters():
        nn.init.uniform_(parameter)
    model.eval()
    result = convs[0](features[1])
    alone = norms[0][1]
    expected = F.batch_norm(
        result, alone.running_mean, alone.running_var, norms[0].weight, norms[0].bias
    )
    torch.testing.assert_close(norms[0](result, 1), expected)
    assert all(conv.bias is None for conv in convs)


@pytest.mark.parametrize("normalizer", ["batch", "image", "moving"])
@pytest.mark.parametrize("scores_background", [False, True])
def test_losses_of_all_anchors(normalizer, scores_background):
    model = make(
        f"retinanet_loss_normalizer={normalizer}",
        f"retinanet_scores_background={scores_background}", LOSS_ALPHA=0.3,
        LOSS_GAMMA=1.5, BBOX_REG_BETA=0.2, BBOX_REG_WEIGHT=3.0, BBOX_REG_WEIGHTS=(2, 2, 1, 1),
    ).train()  # fmt: skip
    nn.init.normal_(model.head.cls_logits.weight, std=0.5)
    images, targets = make_images(), truth()
    targets[1] = {"boxes": torch.tensor([[5.0, 5, 70, 30]]), "labels": torch.tensor([2])}
    result = model(images, targets)

    features = model.backbone(model.normalizer(images).pixels)
    anchors = torch.cat(model.anchor_generator([f.shape[-2:] for f in features]))
    logits, deltas = (torch.cat(x, dim=1).detach() for x in model.head(features))
    classifier, box, counts = [], [], []
    for image, target in enumerate(targets):
        matched = Matcher(0.5, 0.4, True)(padded_gt(target["boxes"]), anchors)[0]
        counted, foreground = matched != IGNORE, matched >= 0
        columns = target["labels"][matched[foreground]] - int(not scores_background)
        expected = torch.zeros_like(logits[image])
        expected[foreground, columns] = 1
        focal = sigmoid_focal_loss(logits[image], expected, alpha=0.3, gamma=1.5)
        classifier.append(focal[counted].sum().item())
        moves = model.box_coder.encode(target["boxes"][matched[foreground]], anchors[foreground])
        own = deltas[image, foreground]
        box.append(F.smooth_l1_loss(own, moves, beta=0.2, reduction="sum").item() / 3)
        counts.append(int(foreground.sum()))
    assert min(counts) > 0
    if normalizer == "image":
        expected = [
            sum(x / n for x, n in zip(y, counts, strict=True)) / 2 for y in (classifier, box)
        ]
    else:
        moving = 0.9 * 100 + 0.1 * sum(counts)
        classifier_divisor, box_divisor = (
            (moving, moving) if normalizer == "moving" else (sum(counts) + 2, sum(counts))
        )
        expected = [sum(classifier) / classifier_divisor, sum(box) / box_divisor]
    assert result["loss_classifier"].item() == pytest.approx(expected[0], rel=1e-4)
    assert result["loss_box"].item() == pytest.approx(expected[1], rel=1e-4)


def test_moving_count_is_saved_and_changes_only_with_gradients():
    model = make("retinanet_loss_normalizer=moving").train()
    with torch.no_grad():
        model(make_images(), truth())
    assert model.moving_foreground == model.START
    model(make_images(), truth())
    assert 80 < model.state_dict()["moving_foreground"] < 100
    assert "moving_foreground" not in make().state_dict()


def raw_scores(model: RetinaNet) -> RetinaNet:
    """Scores that differ over anchors and levels."""
    nn.init.normal_(model.head.cls_logits.weight, std=1.0)
    nn.init.normal_(model.head.bbox_pred.weight, std=0.3)
    return model.eval()


@torch.no_grad()
def test_candidates_are_the_best_scores_of_each_level():
    model = raw_scores(make(PRE_NMS_TOP_N=7, INFERENCE_TH=0.05))
    batch = model.normalizer(make_images())
    features = model.backbone(batch.pixels)
    candidates = model.predict_boxes(features, batch)
    # Usable: in the image, and not empty.
    candidates = model.postprocess.select(candidates, batch.sizes)
    anchors = model.anchor_generator([f.shape[-2:] for f in features])
    logits, deltas = model.head(features)
    for image in range(2):
        own = candidates[image][candidates.valid[image]]
        rows = []
        for level, scores in enumerate(logits):
            every = scores[image].sigmoid()
            order = every.flatten().argsort(descending=True)[:7].tolist()
            for place in order:
                n, k = divmod(place, 3)
                if every[n, k] > 0.05:
                    box = model.box_coder.decode(deltas[level][image, n], anchors[level][n])
                    rows.append((clip_boxes_to_image(box, SIZES[image]), every[n, k], k + 1))
        rows = [row for row in rows if box_ops.has_min_size(row[0][None], 0)]
        assert len(rows) > 5
        torch.testing.assert_close(own.boxes, torch.stack([row[0] for row in rows]))
        torch.testing.assert_close(own.scores, torch.stack([row[1] for row in rows]))
        assert own.labels.tolist() == [row[2] for row in rows]


def test_config_keys_of_postprocessing_and_towers():
    for override, biased in ((("retinanet_normed_bias=True",), True), ((), False)):
        conv = make(*override, NORM="GN").head.cls_tower[0][0]
        assert (conv.bias is not None) == biased
    post = make("retinanet_min_size=5.0", "retinanet_clip=after-nms", NMS_TH=0.3).postprocess
    assert (post.min_size, post.clip, post.suppression.iou_thresh) == (5, "after-nms", 0.3)


def test_the_background_is_label_0_where_it_is_scored():
    labels = raw_scores(make("retinanet_scores_background=True"))(make_images())[0]["labels"]
    assert set(labels.tolist()) == {0, 1, 2, 3}
    labels = raw_scores(make())(make_images())[0]["labels"]
    assert set(labels.tolist()) == {1, 2, 3}


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("from_c5", [False, True])
def test_p6_and_p7(from_c5, relu):
    neck = FPN([4, 6], 8, top=P6P7(6 if from_c5 else 8, 8, from_c5, relu))
    maps = [torch.rand(1, 4, 14, 10), torch.rand(1, 6, 7, 5)]
    levels = neck(maps)
    assert [tuple(x.shape[-2:]) for x in levels] == [(14, 10), (7, 5), (4, 3), (2, 2)]
    p6 = neck.top.p6(maps[-1] if from_c5 else levels[1])
    torch.testing.assert_close(levels[2], p6)
    torch.testing.assert_close(levels[3], neck.top.p7(p6.relu() if relu else p6))


def test_sizes_of_an_octave():
    generator = make(ANCHOR_SIZES=(8, 16, 32, 64, (128,)), ASPECT_RATIOS=(1.0,)).anchor_generator
    cell = generator.get_buffer("cell4")
    sides = (cell[:, 2:] - cell[:, :2])[:, 0]
    torch.testing.assert_close(sides, 128 * 2 ** (torch.arange(3) / 3))
