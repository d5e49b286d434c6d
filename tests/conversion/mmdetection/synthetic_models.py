"""Narrow models of mmdetection: configs, weights and images.

`python -m tests.conversion.mmdetection.synthetic_models` runs mmdetection on them, if
installed, and writes its detections to `outputs.npz` for the tests.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

OUTPUTS = Path(__file__).with_name("outputs.npz")
CLASSES = ("cup", "person", "bird", "kite")
_RGB = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375], "bgr_to_rgb": True}
_BGR = {"mean": [103.53, 116.28, 123.675], "std": [1.0, 1.0, 1.0], "bgr_to_rgb": False}
_SIGMOID = {"type": "CrossEntropyLoss", "use_sigmoid": True}
_SOFTMAX = {"type": "CrossEntropyLoss", "use_sigmoid": False}
_CHANNELS = [64, 128, 256, 512]


def _coder(*stds: float) -> dict[str, Any]:
    return {"type": "DeltaXYWHBBoxCoder", "target_means": [0.0] * 4, "target_stds": list(stds)}


def _pool(side: int) -> dict[str, Any]:
    layer = {"type": "RoIAlign", "output_size": side, "sampling_ratio": 0}
    return {
        "type": "SingleRoIExtractor",
        "roi_layer": layer,
        "out_channels": 16,
        "featmap_strides": [4, 8, 16, 32],
    }


def _box_head(*stds: float, agnostic: bool = False) -> dict[str, Any]:
    return {
        "type": "Shared2FCBBoxHead",
        "in_channels": 16,
        "fc_out_channels": 32,
        "roi_feat_size": 7,
        "num_classes": len(CLASSES),
        "bbox_coder": _coder(*stds),
        "reg_class_agnostic": agnostic,
        "loss_cls": _SOFTMAX,
        "loss_bbox": {"type": "L1Loss"},
    }


_MASK_HEAD = {
    "type": "FCNMaskHead",
    "num_convs": 4,
    "in_channels": 16,
    "conv_out_channels": 16,
    "num_classes": len(CLASSES),
    "loss_mask": {"type": "CrossEntropyLoss", "use_mask": True},
}


def _config(model: dict[str, Any], caffe: bool = False, **backbone: Any) -> dict[str, Any]:
    """Complete the config of a model, in the format of version 3."""
    backbone = {
        "type": "ResNet",
        "depth": 50,
        "base_channels": 16,
        "num_stages": 4,
        "out_indices": (0, 1, 2, 3),
        "frozen_stages": 1,
        "norm_cfg": {"type": "BN", "requires_grad": not caffe},
        "norm_eval": True,
        "style": "caffe" if caffe else "pytorch",
        **backbone,
    }
    neck = {"type": "FPN", "in_channels": _CHANNELS, "out_channels": 16, "num_outs": 5}
    pixels = {"type": "DetDataPreprocessor", **(_BGR if caffe else _RGB), "pad_size_divisor": 32}
    pipeline = [
        {"type": "LoadImageFromFile", "backend_args": None},
        {"type": "Resize", "scale": (213, 128), "keep_ratio": True},
        {"type": "LoadAnnotations", "with_bbox": True},
        {"type": "PackDetInputs", "meta_keys": ("ori_shape", "img_shape", "scale_factor")},
    ]
    model = {"data_preprocessor": pixels, "backbone": backbone, **model}
    model["neck"] = {**neck, **model.get("neck", {})}
    return {"model": model, "test_dataloader": {"dataset": {"pipeline": pipeline}}}


def _rcnn(kind: str, heads: dict[str, Any]) -> dict[str, Any]:
    anchors = {"scales": [2], "ratios": [0.5, 1.0, 2.0], "strides": [4, 8, 16, 32, 64]}
    nms = {"type": "nms", "iou_threshold": 0.7}
    return {
        "type": kind,
        "rpn_head": {
            "type": "RPNHead",
            "in_channels": 16,
            "feat_channels": 16,
            "anchor_generator": {"type": "AnchorGenerator", **anchors},
            "bbox_coder": _coder(1.0, 1.0, 1.0, 1.0),
            "loss_cls": _SIGMOID,
            "loss_bbox": {"type": "SmoothL1Loss", "beta": 1.0 / 9},
        },
        "roi_head": {"bbox_roi_extractor": _pool(7), **heads},
        "train_cfg": None,
        "test_cfg": {
            "rpn": {"nms_pre": 400, "max_per_img": 200, "nms": nms, "min_bbox_size": 0},
            "rcnn": {
                "score_thr": 0.15,
                "nms": {"type": "nms", "iou_threshold": 0.5},
                "max_per_img": 30,
                "mask_thr_binary": 0.5,
            },
        },
    }


def _one_head(**more: Any) -> dict[str, Any]:
    return {"type": "StandardRoIHead", "bbox_head": _box_head(0.1, 0.1, 0.2, 0.2), **more}


def _retinanet(**neck: Any) -> dict[str, Any]:
    anchors = {"octave_base_scale": 2, "scales_per_octave": 3, "ratios": [0.5, 1.0, 2.0]}
    return {
        "type": "RetinaNet",
        "neck": {"start_level": 1, **neck},
        "bbox_head": {
            "type": "RetinaHead",
            "num_classes": len(CLASSES),
            "in_channels": 16,
            "stacked_convs": 4,
            "feat_channels": 16,
            "anchor_generator": {
                "type": "AnchorGenerator",
                "strides": [8, 16, 32, 64, 128],
                **anchors,
            },
            "bbox_coder": _coder(1.0, 1.0, 1.0, 1.0),
            "loss_cls": {"type": "FocalLoss", "use_sigmoid": True},
            "loss_bbox": {"type": "L1Loss"},
        },
        "test_cfg": {
            "nms_pre": 300,
            "min_bbox_size": 0,
            "score_thr": 0.1,
            "nms": {"type": "nms", "iou_threshold": 0.5},
            "max_per_img": 30,
        },
    }


_CASCADE = {
    "type": "CascadeRoIHead",
    "num_stages": 3,
    "stage_loss_weights": [1, 0.5, 0.25],
    "bbox_head": [
        _box_head(0.1, 0.1, 0.2, 0.2, agnostic=True),
        _box_head(0.05, 0.05, 0.1, 0.1, agnostic=True),
        _box_head(0.033, 0.033, 0.067, 0.067, agnostic=True),
    ],
}
_MASKS = {"mask_roi_extractor": _pool(14), "mask_head": _MASK_HEAD}
CONFIGS: dict[str, dict[str, Any]] = {
    "mask_rcnn_r50": _config(_rcnn("MaskRCNN", _one_head(**_MASKS))),
    "faster_rcnn_r50_caffe": _config(_rcnn("FasterRCNN", _one_head()), caffe=True),
    "faster_rcnn_x50": _config(
        _rcnn("FasterRCNN", _one_head()), type="ResNeXt", groups=4, base_width=8
    ),
    "retinanet_r50": _config(_retinanet(add_extra_convs="on_input")),
    "retinanet_r50_caffe": _config(
        _retinanet(add_extra_convs="on_output", relu_before_extra_convs=True), caffe=True
    ),
    "cascade_rcnn_r50": _config(_rcnn("CascadeRCNN", _CASCADE)),
    "cascade_mask_rcnn_r50": _config(_rcnn("CascadeRCNN", {**_CASCADE, **_MASKS})),
}
# Factors of the last layers that lead to scores between 0 and 1 and small shifts of boxes.
_GAINS = {
    "rpn_cls": 0.5,
    "rpn_reg": 0.1,
    "fc_cls": 0.4,
    "fc_reg": 0.5,
    "retina_cls": 0.5,
    "retina_reg": 0.2,
}


def config_text(config: Mapping[str, Any]) -> str:
    """Write a config as a flat Python file."""
    return "".join(f"{name} = {value!r}\n" for name, value in config.items())


def weights(shapes: Mapping[str, list[int]], caffe: bool) -> dict[str, torch.Tensor]:
    """Make weights that depend on their names and shapes only."""
    state = {}
    for name, shape in shapes.items():
        drawn = np.random.RandomState(zlib.crc32(name.encode())).uniform(size=shape or None)
        layer, leaf = name.split(".")[-2:]
        if leaf == "num_batches_tracked":
            value = np.zeros(())
        elif leaf == "running_var":
            value = 0.5 + drawn
        elif len(shape) == 1 and leaf == "weight":
            value = (0.8 + 0.4 * drawn) / (4 if layer == "bn3" else 1)
        elif len(shape) == 1:
            value = (drawn - 0.5) * 0.2 - (1.0 if layer == "retina_cls" else 0)
        else:
            fan_in = shape[0] if layer == "upsample" else int(np.prod(shape[1:]))
            value = (drawn - 0.5) * (24 / fan_in) ** 0.5 * _GAINS.get(layer, 1.0)
            axes = 0 if layer == "upsample" else tuple(range(1, len(shape)))
            value = value - value.mean(axis=axes, keepdims=True)
            if caffe and name == "backbone.conv1.weight":
                value = value / 57
        state[name] = torch.from_numpy(np.asarray(value))
        state[name] = state[name].long() if leaf == "num_batches_tracked" else state[name].float()
    return state


def make_images() -> Iterator[np.ndarray]:
    """Yield two RGB images uint8 [H, W, 3]."""
    for seed, size in enumerate(((9, 12), (11, 8))):
        coarse = np.random.RandomState(seed).randint(0, 256, (*size, 3)).astype(np.uint8)
        yield coarse.repeat(10, axis=0).repeat(10, axis=1)


def main() -> None:
    """Record the detections of mmdetection."""
    import mmdet
    from mmdet.apis import inference_detector
    from mmdet.registry import MODELS
    from mmdet.utils import register_all_modules
    from mmengine.config import Config

    register_all_modules()
    arrays: dict[str, np.ndarray] = {"version": np.array(mmdet.__version__)}
    for name, config in CONFIGS.items():
        cfg = Config(config)
        model = MODELS.build(Config(config).model).eval()
        shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
        model.load_state_dict(weights(shapes, "caffe" in name))
        model.cfg = cfg
        for number, pixels in enumerate(make_images()):
            detections = inference_detector(model, pixels[:, :, ::-1]).pred_instances
            for field in ("bboxes", "scores", "labels", "masks"):
                if field in detections:
                    values = detections[field].numpy()
                    packed = np.packbits(values) if field == "masks" else values
                    arrays[f"{name}/{number}/{field}"] = packed
            print(name, len(detections.scores), detections.scores[:3].tolist(), flush=True)
        arrays[f"{name}/shapes"] = np.frombuffer(json.dumps(shapes).encode(), np.uint8)
        text = Config(config).pretty_text  # the format in checkpoints
        arrays[f"{name}/cfg"] = np.frombuffer(text.encode(), np.uint8)
    np.savez_compressed(OUTPUTS, **arrays)


if __name__ == "__main__":
    main()
