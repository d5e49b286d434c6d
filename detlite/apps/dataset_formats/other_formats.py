"""Recognize unsupported formats, and say which export to choose instead."""

import re
from collections import Counter

from detlite.data.errors import short_repr
from detlite.data.file_type import read_json
from detlite.data.index.build import open_index

from .file_tree import FileTree, excerpt
from .mask_files import find_masks

_COCO = "In the tool that wrote it, choose the export COCO json"
_DATUMARO = "Convert it to COCO json with datumaro, see docs/annotation_tools.md"
_NEXT = "Put a.txt next to a.jpg, or the folder labels next to images"
_TO_COCO = "Convert it to COCO json"
_INSTANCES = "Use instances_*.json, or convert it to COCO json"
_BDD = "Convert it: bdd100k.label.to_coco"
_VOC = "In VoTT, choose the export Pascal VOC"
_UNPACK = "Unpack it, or save a label image"
_LABEL_IMAGES = "Export label images, PNG or TIFF"
_IMAGES = "Convert the images to PNG or TIFF, or register a reader (docs/extending.md)"
# Pattern of paths, pattern of the content of these files, name of the format, and what to do.
_OTHERS = [
    (r"\.(tfrecords?|record)$", "", "TFRecord", _COCO),
    (r"\.(csv|json)$", r'"image","xmin|"visitedAssets|"assetMetadata|"asset": ', "VoTT", _VOC),
    (r"\.csv$", "ImageID,(Source,)?LabelName", "Open Images", _DATUMARO),
    (r"\.csv$", "EncodedPixels|RLE|,annotation,", "CSV of run lengths", _TO_COCO),
    (
        r"\.csv$",
        r"(?i)filename,.*xmin|^[^,\n]+(,[\d.]+){4},|bbo?x|Boxes|,gs://|^(UNASSIGNED|TRAIN\w*),",
        "CSV of boxes",
        _COCO,
    ),
    (r"\.csv$", "^scorer,", "DeepLabCut", _TO_COCO),
    (r"\.json$", '"segments_info"|"caption"', "COCO panoptic or captions", _INSTANCES),
    (r"\.json$", '"predicted_iou"', "masks of Segment Anything", _TO_COCO),
    (r"\.json$", '(?i)"images".*"annotations"|"annotations".*"images"', "COCO json", ""),
    (r"\.json$", r'"(openlabel|vcd)"\s*:', "OpenLABEL or VCD", _TO_COCO),
    (r"\.json$", r'"answers"\s*:', "Sama", _COCO),
    (r"\.json$", '"label_status"', "Segments.ai", "Use export_dataset(..., 'coco-instance')"),
    (r"\.json$", '"tagName"', "Azure Custom Vision", _TO_COCO),
    (r"\.json$", '"_cls"|"detections"', "FiftyOne", "Export it as COCODetectionDataset"),
    (r"\.json$", r'^\s*\[.*"tracks"', "a backup of CVAT", "Export the dataset as COCO 1.0"),
    (r"\.json$", '"ISAT"', "ISAT", "Convert it to COCO json in ISAT"),
    (r"\.json$", '"category_token"|"pose_keypoints', "nuImages or OpenPose", _TO_COCO),
    (r"\.json$", '"bboxVis"|"identity"', "CityPersons or EuroCity Persons", _TO_COCO),
    (r"\.ndjson$", '"class_names"', "NDJSON of Ultralytics", "Download it as YOLO"),
    (r"\.(nd)?jsonl?$", '"Labeled Data"|"data_row"', "Labelbox", "Use Labelbox's COCO converter"),
    (r"\.json$", '"label_classes"|"data_units"|"jsonResponse"', "Hasty, Encord or Kili", _COCO),
    (r"\.json$", r'"bbox_mode"|"ann"\s*:', "dicts of detectron2 or mmdetection", _TO_COCO),
    (r"\.json$", '"category_id".*"score"', "COCO results", "Choose the file of annotations"),
    (r"\.(geo)?json$", '"FeatureCollection"', "GeoJSON, such as QuPath's", _LABEL_IMAGES),
    (r"\.json$", r'"coordinates"\s*:\s*\[\s*\{', "Dataloop", _COCO),
    (r"gtFine.*\.(json|png)$", "", "Cityscapes", "Use DATASETS.CATALOG with type: cityscapes"),
    (r"\.json$", '"box2d"|"poly2d"|"vertices"', "BDD100K or Scalabel", _BDD),
    (r"\.json$", r'"item"\s*:.*"slots"|"original_filename"', "V7 Darwin", _COCO),
    (r"\.json$", r'"metadata"\s*:\s*\{.*"xy"', "VIA 3", _COCO),
    (r"\.json$", '"className"|"classId"', "SuperAnnotate", _COCO),
    (r"\.json$", '"joint_self"', "MPII", _TO_COCO),
    (r"\.json$", r'"polygon"\s*:\s*\[', "Mapillary Vistas", _TO_COCO),
    (r"\.json$", '"task_id".*"left"', "Scale AI", _TO_COCO),
    (r"\.json$", '"notes|"info"', "a json file without images and annotations", _COCO),
    (r"\.(jsonl|manifest)$", '"source-ref"', "a manifest of SageMaker or Rekognition", _TO_COCO),
    (r"\.jsonl$", '"imageGcsUri"|"topX"', "JSON lines of Vertex AI or Azure ML", _TO_COCO),
    (r"\.jsonl$", '"spans"', "Prodigy", _TO_COCO),
    (r"\.odgt$", "", "CrowdHuman", _TO_COCO),
    (r"\.(jsonl|manifest)$", "", "JSON lines", _TO_COCO),
    (r"\.(parquet|arrow)$", "", "Hugging Face data", "Save the images, and the boxes as COCO json"),
    (r"\.xml$", r"<annotation[\s>].*<pt>", "LabelMe's old XML", "Use the json of LabelMe 3"),
    (r"\.xml$", "<points>", "FAIR1M", _TO_COCO),
    (r"\.xml$", r"<dataset>.*<box ", "XML of dlib's imglab", _TO_COCO),
    (r"\.txt$", r"^[A-Za-z]\w*( -?[\d.]+){14,15}\s*$", "KITTI", _DATUMARO),
    (r"(^|/)gt/[^/]*\.txt$", r"^\d+,-?\d+,", "MOT or UAVDT", _TO_COCO),
    (r"\.txt$", r"^(\d+,){5}[01],\d+,\d+,?\s*$", "VisDrone", _TO_COCO),
    (r"\.txt$", r"^[A-Za-z][\w -]*( [\d.]+){4}( difficult)?\s*$", "text of corners", _TO_COCO),
    (r"\.txt$", r"^\S.*\.\w+ \d+(,\d+){4}", "a list of boxes of keras-yolo3", _TO_COCO),
    (r"wider_face.*bbx.*\.txt$", "", "WIDER Face", _DATUMARO),
    (r"\.txt$", r"imagesource:|^([\d.]+ ){8}[A-Za-z][\w-]* [01]", "DOTA", _TO_COCO),
    (r"\.txt$", r"^\ufeff?(\d+, ?){8}", "ICDAR", _TO_COCO),
    (r"\.txt$", r"^\d+( (0?\.\d+|[01]|1\.0+)){4,}\s*$", "YOLO whose files match no image", _NEXT),
    (r"\.npy$", "", "a NumPy file", "Save them as PNG or TIFF; Cellpose saves masks as PNG, too"),
    (r"\.mat$", "", "a MATLAB file", "Convert them to COCO json, or to label images"),
    (r"(?<!\.nii)\.gz$|\.(roi|zip)$", "", "an archive or ImageJ's ROIs", _UNPACK),
    (r"\.(hei[cf]|dcm|nii(\.gz)?|svs|czi|nd2|lif)$", "", "a kind of image", _IMAGES),
]  # fmt: skip
_SUPPORTED = (
    "COCO json, YOLO (data.yaml, obj.names or classes.txt), PASCAL VOC and CVAT XML, json of "
    "LabelMe, VIA, Label Studio, CreateML, Supervisely or Datumaro, and images with masks"
)


def describe_unknown(tree: FileTree) -> str:
    """Say what a dataset without readable labels contains, and what to do.

    Raises DataError if it contains a json file that is not valid.
    """
    paths = [(file, file.relative_to(tree.root).as_posix()) for file in tree.files]
    for pattern, content, name, advice in _OTHERS:
        for file in [file for file, path in paths if re.search(pattern, path, re.I)][:9]:
            if not content or re.search(content, excerpt(file), re.DOTALL | re.MULTILINE):
                if name == "COCO json":
                    open_index(file)  # raises what is wrong with it
                    return f"{file}: is COCO json, but deep in the folder: name it with --data"
                return f"{file}: is {name}, which is not supported. {advice}"
    for file in tree.with_suffix(".json")[:1]:
        read_json(file)
    counts = Counter(file.suffix or file.name for file in tree.files)
    found = ", ".join(f"{count} {kind}" for kind, count in counts.most_common(5)) or "nothing"
    for file in tree.with_suffix(".json", ".jsonl", ".xml", ".csv", ".txt")[:1]:
        found += f"; {file} begins with {short_repr(excerpt(file).lstrip()[:80])}"
    _, masks = find_masks(tree) if tree.data.is_dir() else ({}, [])
    if masks:
        found += f"; {masks[0]} seems to be a mask, but no image has its name"
    return (
        f"{tree.data}: contains no annotations of a supported format, but {found}. Supported: "
        f"{_SUPPORTED}. docs/annotation_tools.md lists the export to choose in each tool"
    )
