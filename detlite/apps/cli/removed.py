"""Commands and options that earlier versions had, and what to use instead."""

_PRE_LABELS = (
    "correct the detections of a model instead of starting from nothing, with `detlite predict "
    "--format coco`, yolo, labelme or label-studio"
)

COMMANDS = {
    "analyze": "count operations with `torch.utils.flop_counter.FlopCounterMode`",
    "benchmark": "run `python -m benchmarks` from a clone",
    "replay": "the error of a loss that is not finite names its images, and the checkpoint before",
    "suggest": f"suggested images were no better than random ones. Label any images: {_PRE_LABELS}",
    "learning-curve": "train on a part of the labels with `detlite train --data`, and compare the "
    "runs with `detlite report`",
}
# By command and option, or option and value.
OPTIONS = {
    ("train", "--unlabeled"): f"images without labels gained nothing. Label them: {_PRE_LABELS}",
    ("predict", "--overlap"): "tiles always overlap by a fifth of their side",
    ("report", "--area-limits"): "pass other limits to pycocotools: COCOeval(...).params.areaRng",
    ("convert", "--to"): "write a file for other programs with `detlite export --format onnx`",
    ("export", "--format aoti"): "use onnx, or compile the file of pt2 with torch._inductor",
    ("export", "--time"): "time a call of `detlite.Predictor(FILE)` with torch.utils.benchmark",
    ("predict", "--format parquet"): "use csv, which pandas.read_csv(...).to_parquet(...) converts",
    ("predict", "--shard-size"): "the run continues after each image; use --workers for several "
    "devices or machines",
}
