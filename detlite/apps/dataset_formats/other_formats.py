"""Recognize unsupported formats, and say which export to choose instead."""

import re
from collections import Counter

from detlite.data.index.build import open_index
from detlite.files.errors import short_repr
from detlite.files.json_files import read_json

from .file_tree import FileTree, excerpt
from .mask_files import find_masks

_COCO = "In the tool that wrote it, choose the export COCO json, or convert it to COCO json"
_DATUMARO = "Convert it to COCO json with datumaro, see docs/annotation_tools.md"
_VOC = "In VoTT, choose the export Pascal VOC"
_INSTANCES = "Use instances_*.json, or convert it to COCO json"
_NEXT = "Put a.txt next to a.jpg, or the folder labels next to images"
_PNG = "Export label images, PNG or TIFF"
_MAPS = "Convert its polygons to pixels of the images with rasterio, and save them as COCO json"
_UNPACK = "Unpack it, or save a label image"
_IMAGES = "Convert the images to PNG or TIFF, or register a reader (docs/extending.md)"
_JSON = r"\.((geo|nd)?json|jsonl|manifest)$"
_CORNERS = r"(?i)filename,.*xmin|^[^,\n]+(,[\d.]+){4},|bbo?x|Boxes|,gs://|^(UNASSIGNED|TRAIN\w*),"
# Keys or values of json files, and the tools or datasets that have them.
_JSON_WORDS = (
    ("openlabel|vcd", "OpenLABEL or VCD"), ("answers", "Sama"), ("label_status", "Segments.ai"),
    ("tagName", "Azure Custom Vision"), ("_cls|detections", "FiftyOne"), ("ISAT", "ISAT"),
    ("category_token|pose_keypoints_2d", "nuImages or OpenPose"), ("jsonResponse", "Kili"),
    ("bboxVis|identity", "CityPersons or EuroCity Persons"), ("joint_self", "MPII"),
    ("Labeled Data|data_row", "Labelbox"), ("label_classes|data_units", "Hasty or Encord"),
    ("slots|original_filename", "V7 Darwin"), ("xy", "VIA 3"),
    ("className|classId", "SuperAnnotate"), ("bbox_mode|ann", "detectron2 or mmdetection"),
    ("source-ref", "SageMaker or Rekognition"), ("imageGcsUri|topX", "Vertex AI or Azure ML"),
    ("predicted_iou", "Segment Anything"), ("task_id", "Scale AI"), ("tracks", "a CVAT backup"),
    ("box2d|poly2d|vertices", "BDD100K or Scalabel"), ("spans", "Prodigy"),
)  # fmt: skip
# Pattern of paths, pattern of the content of these files, name of the format, and what to do.
_OTHERS = [
    (r"\.(tfrecords?|record)$", "", "TFRecord", _COCO),
    (r"\.(csv|json)$", r'"image","xmin|"visitedAssets|"assetMetadata|"asset": ', "VoTT", _VOC),
    (r"\.csv$", "ImageID,(Source,)?LabelName", "Open Images", _DATUMARO),
    (r"\.csv$", "EncodedPixels|RLE|,annotation,", "CSV of run lengths", _COCO),
    (r"\.csv$", _CORNERS, "CSV of boxes", _COCO),
    (r"\.csv$", "^scorer,", "DeepLabCut", _COCO),
    (r"\.json$", '"segments_info"|"caption"', "COCO panoptic or captions", _INSTANCES),
    (r"gtFine.*\.(json|png)$", "", "Cityscapes", "Use DATASETS.CATALOG with type: cityscapes"),
    (r"\.json$", '(?i)"images".*"annotations"|"annotations".*"images"', "COCO json", ""),
    (r"\.ndjson$", '"class_names"', "NDJSON of Ultralytics", "Download it as YOLO"),
    (r"json$", '"FeatureCollection".*"(objectType|classification)"', "GeoJSON of QuPath", _PNG),
    (r"json$", '"FeatureCollection"', "GeoJSON of maps, such as SpaceNet", _MAPS),
    *((_JSON, f'"({words})"', name, _COCO) for words, name in _JSON_WORDS),
    (r"\.json$", '"category_id".*"score"', "COCO results", "Choose the file of annotations"),
    (r"\.json$", r'"coordinates"\s*:\s*\[\s*\{', "Dataloop", _COCO),
    (r"\.json$", r'"polygon"\s*:\s*\[', "Mapillary Vistas", _COCO),
    (r"\.json$", '"notes|"info"', "a json file without images and annotations", _COCO),
    (r"\.odgt$", "", "CrowdHuman", _COCO),
    (r"\.(jsonl|manifest)$", "", "JSON lines", _COCO),
    (r"\.(parquet|arrow)$", "", "Hugging Face data", "Save the images, and the boxes as COCO json"),
    (r"\.xml$", r"<annotation[\s>].*<pt>", "LabelMe's old XML", "Use the json of LabelMe 3"),
    (r"\.xml$", "<points>", "FAIR1M", _COCO),
    (r"\.xml$", r"<dataset>.*<box ", "XML of dlib's imglab", _COCO),
    (r"\.txt$", r"^[A-Za-z]\w*( -?[\d.]+){14,15}\s*$", "KITTI", _DATUMARO),
    (r"(^|/)gt/[^/]*\.txt$", r"^\d+,-?\d+,", "MOT or UAVDT", _COCO),
    (r"\.txt$", r"^(\d+,){5}[01],\d+,\d+,?\s*$", "VisDrone", _COCO),
    (r"\.txt$", r"^[A-Za-z][\w -]*( [\d.]+){4}( difficult)?\s*$", "text of corners", _COCO),
    (r"\.txt$", r"^\S.*\.\w+ \d+(,\d+){4}", "a list of boxes of keras-yolo3", _COCO),
    (r"wider_face.*bbx.*\.txt$", "", "WIDER Face", _DATUMARO),
    (r"\.txt$", r"imagesource:|^([\d.]+ ){8}[A-Za-z][\w-]* [01]", "DOTA", _COCO),
    (r"\.txt$", r"^\ufeff?(\d+, ?){8}", "ICDAR", _COCO),
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
