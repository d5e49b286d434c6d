"""Name the formats that are not read, and say which export to choose instead."""

import re
from collections import Counter

from .file_tree import FileTree, excerpt

_DATUMARO = "Convert it: `datum convert -i FOLDER -if {} -f coco_instances -o NEW -- --save-media`"
_ROBOFLOW = "In Roboflow, choose the format COCO"
# A pattern of paths, one of the content of such files, the name of the format, and what to do.
_OTHERS = [
    (r"\.(tfrecords?|record)$", "", "TFRecord", _ROBOFLOW),
    (r"\.csv$", r"filename,.*xmin|^[^,\n]+(,\d+){4},", "CSV of boxes", _ROBOFLOW),
    (r"\.csv$", r"ImageID,Source,LabelName", "Open Images", _DATUMARO.format("open_images")),
    (r"\.csv$", r'"?image"?,"?xmin', "VoTT", _DATUMARO.format("vott_csv")),
    (r"\.json$", r'"visitedAssets|"tagType"|"assetMetadata', "VoTT", _DATUMARO.format("vott_json")),
    (r"\.json$", r'"segments_info"|"caption"', "COCO panoptic or captions", "Use instances_*.json"),
    (r"\.json$", r'"imgHeight"', "Cityscapes", "Use DATASETS.CATALOG with type: cityscapes"),
    (r"\.json$", r'"box2d"|"poly2d"', "BDD100K or Scalabel", "Convert it: `bdd100k.label.to_coco`"),
    (r"\.json$", r'"item"\s*:.*"slots"', "V7 Darwin", "In V7, export as COCO"),
    (r"\.json$", r'"metadata"\s*:\s*\{.*"xy"', "VIA 3", "In VIA, export as COCO"),
    (r"\.json$", r'"className"|"classId"', "SuperAnnotate", "In SuperAnnotate, export as COCO"),
    (r"\.json$", r'"notes|"info"', "a json file without images", "Export as COCO"),
    (r"\.(ndjson|jsonl)$", r'"data_row"', "Labelbox", "Convert it with Labelbox's COCO converter"),
    (r"\.jsonl$", "", "JSON lines", "In Roboflow or Hugging Face, choose COCO"),
    (r"\.manifest$", "", "SageMaker Ground Truth", "Convert it to COCO"),
    (r"\.parquet$|\.arrow$", "", "Hugging Face data", "Save the images, and the boxes as COCO"),
    (r"\.xml$", r"<annotation[\s>].*<polygon>", "LabelMe's old XML", "Use the json of LabelMe 3"),
    (r"label_2/.*\.txt$", "", "KITTI", _DATUMARO.format("kitti_detection")),
    (r"(^|/)gt/gt\.txt$", "", "MOT", _DATUMARO.format("mot_seq")),
    (r"wider_face.*\.txt$", "", "WIDER Face", _DATUMARO.format("wider_face")),
    (r"\.txt$", r"imagesource:|^([\d.]+ ){8}\w+ [01]", "DOTA", _DATUMARO.format("dota")),
    (r"\.txt$", r"^\s*\d+(\s+[\d.]+){4,}", "YOLO", "Add the images to the text files"),
    (r"_seg\.npy$", "", "Cellpose's _seg.npy", "In Cellpose, save masks as PNG or TIFF"),
    (r"\.(roi|zip)$", "", "a zip file or ImageJ's ROIs", "Unpack it, or save a label image"),
    (r"\.(hei[cf]|dcm|nii(\.gz)?|npy|svs|czi|nd2|lif)$", "", "a format of images that is not read",
     "Convert the images to PNG or TIFF, or register a reader (docs/extending.md)"),
]  # fmt: skip
_SUPPORTED = (
    "COCO json, YOLO (data.yaml, obj.names or classes.txt), PASCAL VOC and CVAT XML, json of "
    "LabelMe, VIA, Label Studio, CreateML, Supervisely or Datumaro, and images with masks"
)


def describe_unknown(tree: FileTree) -> str:
    """Say what a dataset without readable labels contains, and what to do."""
    for pattern, content, name, advice in _OTHERS:
        for file in tree.files:
            path = file.relative_to(tree.root).as_posix()
            if not re.search(pattern, path, re.IGNORECASE):
                continue
            if not content or re.search(content, excerpt(file), re.DOTALL | re.MULTILINE):
                return f"{file}: is {name}, which is not read. {advice}"
            break
    counts = Counter(file.suffix or file.name for file in tree.files)
    found = ", ".join(f"{count} {kind}" for kind, count in counts.most_common(5)) or "nothing"
    return (
        f"{tree.data}: contains no annotations of a supported format, but {found}. Supported: "
        f"{_SUPPORTED}. docs/annotation_tools.md lists the export to choose in each tool"
    )
