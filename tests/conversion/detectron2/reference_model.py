"""Independent implementation of detectron2's detectors, for inference from its state dicts.

Written from the papers and conventions of detectron2 with torchvision's operators, without code of
detlite, for models without recorded outputs.

Shapes: B images, R RoIs of an image, A anchors per cell, K classes without background.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import clip_boxes_to_image, deform_conv2d, nms, roi_align

Detections = dict[str, Tensor]
GROUPS = 4  # of group norm; 32 in the published models
_SIZES = (32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Reference:
    """A detector.

    Attributes:
        state: the state dict with detectron2's names.
        backbone: "FPN", "C4" or "DC5".
        stride_in_1x1, groups, pixel_std, pre_nms: settings of its config.
        score_thresh: score threshold of detections.
    """

    state: dict[str, Tensor]
    backbone: str = "FPN"
    stride_in_1x1: bool = True
    groups: int = 1
    pixel_std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    pre_nms: int = 1000
    score_thresh: float = 0.05

    @torch.no_grad()
    def __call__(self, images: list[Tensor]) -> list[Detections]:
        """Detect in RGB images uint8 [3, H, W]; labels start at 1."""
        batch, sizes = self._batch(images)
        maps = self._backbone(batch)
        if "head.cls_score.weight" in self.state:
            return [_not_empty(image) for image in self._retinanet(maps, sizes)]
        features = self._pyramid(maps, 2) if self.backbone == "FPN" else maps[-1:]
        proposals = [self._propose(features, index, size) for index, size in enumerate(sizes)]
        detections = self._classify(features, proposals, sizes)
        if "roi_heads.mask_head.predictor.weight" in self.state:
            self._add_masks(features, detections)
        return [_not_empty(image) for image in detections]

    def _batch(self, images: list[Tensor]) -> tuple[Tensor, list[tuple[int, int]]]:
        mean = torch.tensor([103.53, 116.28, 123.675]).view(3, 1, 1)
        std = torch.tensor(self.pixel_std).view(3, 1, 1)
        sizes = [(image.shape[1], image.shape[2]) for image in images]
        step = 32 if self.backbone == "FPN" else 1
        height, width = (-(-max(side) // step) * step for side in zip(*sizes, strict=True))
        batch = torch.zeros(len(images), 3, height, width)
        for padded, image, (h, w) in zip(batch, images, sizes, strict=True):
            padded[:, :h, :w] = (image.flip(0) - mean) / std  # BGR
        return batch, sizes

    def _conv(self, x: Tensor, name: str, stride: int = 1, dilation: int = 1) -> Tensor:
        """Apply a convolution with "same" padding, and its frozen norm if present."""
        weight = self.state[f"{name}.weight"]
        padding = dilation * (weight.shape[-1] // 2)
        groups = x.shape[1] // weight.shape[1]
        bias = self.state.get(f"{name}.bias")
        return self._norm(F.conv2d(x, weight, bias, stride, padding, dilation, groups), name)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self._batch_norm(x, f"{name}.norm") if f"{name}.norm.weight" in self.state else x

    def _batch_norm(self, x: Tensor, name: str) -> Tensor:
        leaves = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x, *(self.state[f"{name}.{leaf}"] for leaf in leaves), eps=1e-5)

    def _stage(self, x: Tensor, name: str, stride: int, dilation: int = 1) -> Tensor:
        block = 0
        while f"{name}.{block}.conv1.weight" in self.state:
            x = self._bottleneck(x, f"{name}.{block}", 1 if block else stride, dilation)
            block += 1
        return x

    def _bottleneck(self, x: Tensor, name: str, stride: int, dilation: int) -> Tensor:
        first, second = (stride, 1) if self.stride_in_1x1 else (1, stride)
        out = self._conv(x, f"{name}.conv1", first).relu()
        conv2 = f"{name}.conv2"
        if f"{conv2}_offset.weight" in self.state:  # modulated deformable convolution
            *offsets, weights = self._conv(out, f"{conv2}_offset", second).chunk(3, dim=1)
            out = deform_conv2d(
                out, torch.cat(offsets, 1), self.state[f"{conv2}.weight"], stride=second,
                padding=1, mask=weights.sigmoid(),
            )  # fmt: skip
            out = self._norm(out, conv2)
        else:
            out = self._conv(out, conv2, second, dilation)
        out = self._conv(out.relu(), f"{name}.conv3")
        shortcut = f"{name}.shortcut"
        return (out + (self._conv(x, shortcut, stride) if f"{shortcut}.weight" in self.state else x)
                ).relu()  # fmt: skip

    def _backbone(self, x: Tensor) -> list[Tensor]:
        """Return the feature maps of res2, res3, ..."""
        prefix = "backbone.bottom_up" if self.backbone == "FPN" else "backbone"
        if f"{prefix}.s1.b1.f.a.weight" in self.state:
            return self._regnet(x, prefix)
        x = self._conv(x, f"{prefix}.stem.conv1", stride=2).relu()
        x = F.max_pool2d(x, 3, 2, 1)
        maps = []
        for stage in range(2, 5 if self.backbone == "C4" else 6):
            dilation = 2 if (stage, self.backbone) == (5, "DC5") else 1
            stride = 1 if stage == 2 or dilation == 2 else 2
            x = self._stage(x, f"{prefix}.res{stage}", stride, dilation)
            maps.append(x)
        return maps

    def _regnet(self, x: Tensor, prefix: str) -> list[Tensor]:
        """Return the feature maps of s1 to s4 of a RegNet."""
        maps, x = [], self._normed(x, f"{prefix}.stem.conv", f"{prefix}.stem.bn", 2).relu()
        for stage in range(1, 5):
            block = 1
            while f"{prefix}.s{stage}.b{block}.f.a.weight" in self.state:
                here, stride = f"{prefix}.s{stage}.b{block}", 2 if block == 1 else 1
                f = f"{here}.f"
                out = self._normed(x, f"{f}.a", f"{f}.a_bn").relu()
                out = self._normed(out, f"{f}.b", f"{f}.b_bn", stride).relu()
                if f"{f}.se.f_ex.0.weight" in self.state:
                    gate = self._conv(out.mean((2, 3), keepdim=True), f"{f}.se.f_ex.0").relu()
                    out = out * self._conv(gate, f"{f}.se.f_ex.2").sigmoid()
                out = self._normed(out, f"{f}.c", f"{f}.c_bn")
                if f"{here}.proj.weight" in self.state:
                    x = self._normed(x, f"{here}.proj", f"{here}.bn", stride)
                x, block = (out + x).relu(), block + 1
            maps.append(x)
        return maps

    def _normed(self, x: Tensor, conv: str, norm: str, stride: int = 1) -> Tensor:
        return self._batch_norm(self._conv(x, conv, stride), norm)

    def _pyramid(self, maps: list[Tensor], finest: int) -> list[Tensor]:
        """Return P2 to P6 of an R-CNN, or P3 to P7 of a RetinaNet."""
        top = self._conv(maps[-1], "backbone.fpn_lateral5")
        levels = [self._conv(top, "backbone.fpn_output5")]
        for level in range(4, finest - 1, -1):
            lateral = self._conv(maps[level - 2], f"backbone.fpn_lateral{level}")
            top = lateral + F.interpolate(top, scale_factor=2.0, mode="nearest")
            levels.insert(0, self._conv(top, f"backbone.fpn_output{level}"))
        if finest == 2:
            return [*levels, F.max_pool2d(levels[-1], 1, stride=2)]
        p6 = self._conv(maps[-1], "backbone.top_block.p6", stride=2)
        return [*levels, p6, self._conv(p6.relu(), "backbone.top_block.p7", stride=2)]

    def _propose(self, features: list[Tensor], image: int, size: tuple[int, int]) -> Tensor:
        head, per_level = "proposal_generator.rpn_head", []
        for level, x in enumerate(features):
            hidden, several = x[image : image + 1], 0
            if f"{head}.conv.weight" in self.state:
                hidden = self._conv(hidden, f"{head}.conv").relu()
            while f"{head}.conv.conv{several}.weight" in self.state:
                hidden = self._conv(hidden, f"{head}.conv.conv{several}").relu()
                several += 1
            logits = _per_anchor(self._conv(hidden, f"{head}.objectness_logits"), 1)[:, 0]
            deltas = _per_anchor(self._conv(hidden, f"{head}.anchor_deltas"), 4)
            pyramid = len(features) > 1
            sizes = [_SIZES[level]] if pyramid else list(_SIZES)
            anchors = _anchors(x, 2 ** (level + 2) if pyramid else 16, sizes)
            logits, best = logits.topk(min(self.pre_nms, len(logits)))
            boxes = clip_boxes_to_image(_decode(anchors[best], deltas[best], (1.0,) * 4), size)
            per_level.append((boxes, logits, torch.full_like(best, level)))
        boxes, logits, levels = (torch.cat(column) for column in zip(*per_level, strict=True))
        some = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
        boxes, logits, levels = boxes[some], logits[some], levels[some]
        return boxes[_grouped_nms(boxes, logits, levels, 0.7)[:1000]]

    def _pool(self, features: list[Tensor], boxes: list[Tensor], side: int) -> Tensor:
        """Pool the RoIs of all images, [sum R, C, side, side], each from the level of its size."""
        index = torch.cat([torch.full((len(b), 1), float(i)) for i, b in enumerate(boxes)])
        rois = torch.cat([index, torch.cat(boxes)], dim=1)
        if len(features) == 1:
            return roi_align(features[0], rois, side, 1 / 16, 0, aligned=True)
        area = (rois[:, 3] - rois[:, 1]) * (rois[:, 4] - rois[:, 2])
        level = (4 + torch.log2(area.sqrt() / 224)).floor().clamp(2, 5)
        out = torch.zeros(len(rois), features[0].shape[1], side, side)
        for number, x in enumerate(features[:4], start=2):
            out[level == number] = roi_align(
                x, rois[level == number], side, 1 / 2**number, 0, aligned=True
            )
        return out

    def _box_head(
        self, features: list[Tensor], boxes: list[Tensor], stage: str
    ) -> tuple[Tensor, Tensor]:
        head, predictor = f"roi_heads.box_head{stage}", f"roi_heads.box_predictor{stage}"
        if self.backbone == "C4":
            x = self._stage(self._pool(features, boxes, 14), "roi_heads.res5", 2).mean((2, 3))
        else:
            x, conv = self._pool(features, boxes, 7), 1
            while f"{head}.conv{conv}.weight" in self.state:
                x = self._conv(x, f"{head}.conv{conv}").relu()
                conv += 1
            x = self._linear(x.flatten(1), f"{head}.fc1").relu()
            if f"{head}.fc2.weight" in self.state:
                x = self._linear(x, f"{head}.fc2").relu()
        return self._linear(x, f"{predictor}.cls_score"), self._linear(x, f"{predictor}.bbox_pred")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def _classify(
        self, features: list[Tensor], boxes: list[Tensor], sizes: list[tuple[int, int]]
    ) -> list[Detections]:
        cascade = "roi_heads.box_predictor.0.cls_score.weight" in self.state
        scores, moved = torch.zeros(()), torch.zeros(0)
        stages = (".0", ".1", ".2") if cascade else ("",)
        for number, stage in enumerate(stages, start=1):
            counts = [len(b) for b in boxes]
            logits, deltas = self._box_head(features, boxes, stage)
            scores = scores + logits.softmax(dim=1) / len(stages)
            deltas = deltas.unflatten(1, (-1, 4))
            weights = (10.0 * number, 10.0 * number, 5.0 * number, 5.0 * number)
            moved = _decode(torch.cat(boxes)[:, None].expand_as(deltas), deltas, weights)
            parts = zip(moved.split(counts), sizes, strict=True)
            boxes = [clip_boxes_to_image(part[:, 0], size) for part, size in parts]
        detections = []
        for part, own, size in zip(moved.split(counts), scores.split(counts), sizes, strict=True):
            row, label = torch.where(own[:, :-1] > self.score_thresh)
            chosen = part[row, 0 if part.shape[1] == 1 else label]
            detections.append(_detected(clip_boxes_to_image(chosen, size), own[row, label], label))
        return detections

    def _add_masks(self, features: list[Tensor], detections: list[Detections]) -> None:
        boxes, head = [image["boxes"] for image in detections], "roi_heads.mask_head"
        x, conv = self._pool(features, boxes, 14), 1
        if self.backbone == "C4":
            x = self._stage(x, "roi_heads.res5", 2)
        while f"{head}.mask_fcn{conv}.weight" in self.state:
            x = self._conv(x, f"{head}.mask_fcn{conv}").relu()
            conv += 1
        deconv = self.state[f"{head}.deconv.weight"], self.state[f"{head}.deconv.bias"]
        x = self._conv(F.conv_transpose2d(x, *deconv, stride=2).relu(), f"{head}.predictor")
        for image, logits in zip(detections, x.split([len(b) for b in boxes]), strict=True):
            image["mask_probs"] = logits[range(len(logits)), image["labels"] - 1].sigmoid()

    def _retinanet(self, maps: list[Tensor], sizes: list[tuple[int, int]]) -> list[Detections]:
        levels: list[tuple[Tensor, Tensor, Tensor]] = []
        for number, x in enumerate(self._pyramid(maps, 3)):
            scored, moved = (self._tower(x, number, f"head.{kind}") for kind in ("cls", "bbox"))
            octave = [_SIZES[number] * 2 ** (k / 3) for k in range(3)]
            anchors = _anchors(x, 2 ** (number + 3), octave)
            logits, deltas = (
                self._conv(scored, "head.cls_score"),
                self._conv(moved, "head.bbox_pred"),
            )
            levels.append((anchors, logits, deltas))
        detections = []
        for image, size in enumerate(sizes):
            parts = []
            for anchors, logits, deltas in levels:
                classes = logits.shape[1] * 4 // deltas.shape[1]
                scores = _per_anchor(logits[image : image + 1], classes).sigmoid()
                row, label = torch.where(scores > self.score_thresh)
                best_scores, best = scores[row, label].topk(min(1000, len(row)))
                row, label = row[best], label[best]
                own = _per_anchor(deltas[image : image + 1], 4)[row]
                parts.append((_decode(anchors[row], own, (1.0,) * 4), best_scores, label))
            detected = _detected(*(torch.cat(column) for column in zip(*parts, strict=True)))
            detections.append({**detected, "boxes": clip_boxes_to_image(detected["boxes"], size)})
        return detections

    def _tower(self, x: Tensor, level: int, name: str) -> Tensor:
        for layer in range(12):  # convolutions, optional norms, and ReLUs
            here = f"{name}_subnet.{layer}"
            weight, bias = (self.state.get(f"{here}.{leaf}") for leaf in ("weight", "bias"))
            if weight is not None and weight.ndim == 4:
                x = x.relu() if layer else x
                x = F.conv2d(x, weight, bias, padding=1)
            elif f"{here}.{level}.running_mean" in self.state:
                own = (self.state[f"{here}.{level}.running_{of}"] for of in ("mean", "var"))
                x = F.batch_norm(x, *own, weight, bias)
            elif weight is not None:
                x = F.group_norm(x, GROUPS, weight, bias)
        return x.relu()


def _per_anchor(x: Tensor, values: int) -> Tensor:
    """Reshape [1, A * values, H, W] to [H * W * A, values]."""
    return x[0].unflatten(0, (-1, values)).permute(2, 3, 0, 1).reshape(-1, values)


def _anchors(x: Tensor, stride: int, sizes: list[float]) -> Tensor:
    """Return anchors in order of row, column, size and ratio, centred on the corners of cells."""
    ratios = (0.5, 1.0, 2.0)
    halves = [(s / math.sqrt(r) / 2, s * math.sqrt(r) / 2) for s in sizes for r in ratios]
    cell = torch.tensor([(-w, -h, w, h) for w, h in halves])
    row, column = (torch.arange(count) * float(stride) for count in x.shape[2:])
    y, x_ = torch.meshgrid(row, column, indexing="ij")
    return (torch.stack([x_, y, x_, y], dim=-1)[:, :, None] + cell).reshape(-1, 4)


def _decode(boxes: Tensor, deltas: Tensor, weights: tuple[float, ...]) -> Tensor:
    """Decode deltas [..., 4] relative to boxes [..., 4]."""
    shift, growth = (deltas / torch.tensor(weights)).split(2, dim=-1)
    side = boxes[..., 2:] - boxes[..., :2]
    centre = boxes[..., :2] + side / 2 + shift * side
    half = side * growth.clamp(max=math.log(1000 / 16)).exp() / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def _grouped_nms(boxes: Tensor, scores: Tensor, groups: Tensor, iou: float) -> Tensor:
    """Apply NMS within groups; return indices by decreasing score.

    `batched_nms` shifts groups, so that boxes outside of the image may overlap those of others.
    """
    kept = torch.zeros_like(scores, dtype=torch.bool)
    for group in groups.unique():
        own = torch.where(groups == group)[0]
        kept[own[nms(boxes[own], scores[own], iou)]] = True
    index = torch.where(kept)[0]
    return index[scores[index].argsort(descending=True)]


def _not_empty(detections: Detections) -> Detections:
    some = (detections["boxes"][:, 2:] > detections["boxes"][:, :2]).all(dim=1)
    return {name: value[some] for name, value in detections.items()}


def _detected(boxes: Tensor, scores: Tensor, labels: Tensor) -> Detections:
    """Return the best 100 detections after NMS within classes."""
    keep = _grouped_nms(boxes, scores, labels, 0.5)[:100]
    return {"boxes": boxes[keep], "scores": scores[keep], "labels": labels[keep] + 1}
