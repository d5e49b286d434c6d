"""Recognize unsupported formats, and say how to export COCO json or another supported format."""

import re
from collections import Counter

from detlite.data.annotations.store import open_table
from detlite.files.errors import short_repr
from detlite.files.json_files import read_json

from .file_tree import FileTree, excerpt
from .mask_files import NAMES, find_masks

_COCO = "In the tool that wrote it, choose the export COCO json, or convert it to COCO json"
_DATUMARO = "Convert it to COCO json with datumaro, see docs/formats.md"
_DATUM = "Choose the export COCO in CVAT or Geti, or `datum convert -if datumaro -f coco -i FOLDER`"
_VIA = "In VIA, choose Annotation, Export Annotations (COCO format)"
_APPLE = "Choose the export COCO in Roboflow, or PASCAL VOC in RectLabel and other tools"
_FIFTYONE = "Use dataset.export(dataset_type=fiftyone.types.COCODetectionDataset)"
_DETECTRON2 = "Use detectron2.data.datasets.convert_to_coco_json, or the COCO json it was made of"
_MAPS = "Convert its polygons to pixels of the images with rasterio, and save them as COCO json"
_PLACES = "Put a.txt next to a.jpg, or the folder labels next to images"
_IMAGES = "Convert the images to PNG or TIFF, or register a reader (docs/formats.md)"
_JSON, _LINES = r"\.json$", r"\.((geo|nd)?json|jsonl|manifest)$"
_CORNERS = r"(?i)filename,.*xmin|^[^,\n]+(,[\d.]+){4},|bbo?x|Boxes|,gs://|^(UNASSIGNED|TRAIN\w*),"
# A pattern of paths, a pattern of the content of these files, the name of the format, and what to
# do; without it, _COCO. The first match counts.
_OTHERS = (
    (r"\.xml$", r"<annotations[\s>]", "XML of CVAT", "In CVAT, choose the export COCO 1.0"),
    (r"\.csv$", "region_shape_attributes", "csv of VIA", _VIA),
    (_JSON, '"region_attributes"|"_via_img_metadata"', "json of VIA", _VIA),
    (_JSON, r'^\s*\[.*("from_name"|"original_width"|"completions")', "json of Label Studio",
     "In Label Studio, choose Export, COCO"),
    (_JSON, r'^\s*\[.*"coordinates"\s*:\s*\{', "CreateML", _APPLE),
    (_JSON, '"classTitle"', "Supervisely", "In Supervisely, run the app Export to COCO"),
    (_JSON, '"label_id"|"label_groups"', "Datumaro", _DATUM),
    (r"\.(tfrecords?|record)$", "", "TFRecord", ""),
    (r"\.(csv|json)$", r'"image","xmin|"visitedAssets|"assetMetadata|"asset": ', "VoTT",
     "In VoTT, choose the export Pascal VOC"),
    (r"\.csv$", "ImageID,(Source,)?LabelName", "Open Images", _DATUMARO),
    (r"\.csv$", "EncodedPixels|RLE|,annotation,", "CSV of run lengths", ""),
    (r"\.csv$", _CORNERS, "CSV of boxes with other columns", ""),
    (r"\.csv$", "^scorer,", "DeepLabCut", ""),
    (_JSON, '"segments_info"|"caption"', "COCO panoptic or captions", "Use instances_*.json"),
    (r"gtFine.*\.(json|png)$", "", "Cityscapes", "Use DATASETS.CATALOG with type: cityscapes"),
    (_JSON, '(?i)"images".*"annotations"|"annotations".*"images"', "COCO json", ""),
    (r"\.ndjson$", '"class_names"', "NDJSON of Ultralytics", "Download it as YOLO"),
    (r"json$", '"FeatureCollection".*"(objectType|classification)"', "GeoJSON of QuPath",
     "Export label images, PNG or TIFF"),
    (r"json$", '"FeatureCollection"', "GeoJSON of maps, such as SpaceNet", _MAPS),
    (_LINES, '"(openlabel|vcd)"', "OpenLABEL or VCD", ""),
    (_LINES, '"answers"', "Sama", ""),
    (_LINES, '"label_status"', "Segments.ai", "Export it with export_format coco-instance"),
    (_LINES, '"tagName"', "Azure Custom Vision", ""),
    (_LINES, '"(_cls|detections)"', "FiftyOne", _FIFTYONE),
    (_LINES, '"ISAT"', "ISAT", "In ISAT, convert it to COCO"),
    (_LINES, '"(category_token|pose_keypoints_2d)"', "nuImages or OpenPose", ""),
    (_LINES, '"jsonResponse"', "Kili", "In Kili, choose the export COCO"),
    (_LINES, '"(bboxVis|identity)"', "CityPersons or EuroCity Persons", ""),
    (_LINES, '"joint_self"', "MPII", ""),
    (_LINES, '"(Labeled Data|data_row)"', "Labelbox", ""),
    (_LINES, '"(label_classes|data_units)"', "Hasty or Encord", ""),
    (_LINES, '"(slots|original_filename)"', "V7 Darwin", "In V7, choose the export COCO"),
    (_LINES, '"xy"', "VIA 3", _VIA),
    (_LINES, '"(className|classId)"', "SuperAnnotate", ""),
    (_LINES, '"(bbox_mode|ann)"', "detectron2 or mmdetection", _DETECTRON2),
    (_LINES, '"source-ref"', "SageMaker or Rekognition", ""),
    (_LINES, '"(imageGcsUri|topX)"', "Vertex AI or Azure ML", ""),
    (_LINES, '"predicted_iou"', "Segment Anything", ""),
    (_LINES, '"task_id"', "Scale AI", ""),
    (_LINES, '"tracks"', "a CVAT backup", "In CVAT, choose the export COCO 1.0"),
    (_LINES, '"(box2d|poly2d|vertices)"', "BDD100K or Scalabel", "Use to_coco of scalabel"),
    (_LINES, '"spans"', "Prodigy", ""),
    (_JSON, '"category_id".*"score"', "COCO results", "Choose the file of annotations"),
    (_JSON, r'"coordinates"\s*:\s*\[\s*\{', "Dataloop", "In Dataloop, choose the export COCO"),
    (_JSON, r'"polygon"\s*:\s*\[', "Mapillary Vistas", ""),
    (_JSON, '"notes|"info"', "a json file without images and annotations", ""),
    (r"\.odgt$", "", "CrowdHuman", ""),
    (r"\.(jsonl|manifest)$", "", "JSON lines", ""),
    (r"\.(parquet|arrow)$", "", "Hugging Face data", "Save the images, and the boxes as COCO json"),
    (r"\.xml$", r"<annotation[\s>].*<pt>", "LabelMe's old XML", "Use the json of LabelMe 3"),
    (r"\.xml$", "<points>", "FAIR1M", ""),
    (r"\.xml$", r"<dataset>.*<box ", "XML of dlib's imglab", ""),
    (r"\.txt$", r"^[A-Za-z]\w*( -?[\d.]+){14,15}\s*$", "KITTI", _DATUMARO),
    (r"(^|/)gt/[^/]*\.txt$", r"^\d+,-?\d+,", "MOT or UAVDT", ""),
    (r"\.txt$", r"^(\d+,){5}[01],\d+,\d+,?\s*$", "VisDrone", ""),
    (r"\.txt$", r"^[A-Za-z][\w -]*( [\d.]+){4}( difficult)?\s*$", "text of corners", ""),
    (r"\.txt$", r"^\S.*\.\w+ \d+(,\d+){4}", "a list of boxes of keras-yolo3", ""),
    (r"wider_face.*bbx.*\.txt$", "", "WIDER Face", _DATUMARO),
    (r"\.txt$", r"imagesource:|^([\d.]+ ){8}[A-Za-z][\w-]* [01]", "DOTA", ""),
    (r"\.txt$", r"^\ufeff?(\d+, ?){8}", "ICDAR", ""),
    (r"\.txt$", r"^\d+( (0?\.\d+|[01]|1\.0+)){4,}\s*$", "YOLO whose files match no image", _PLACES),
    (r"\.npy$", "", "a NumPy file", "Save them as label images, PNG or TIFF"),
    (r"\.mat$", "", "a MATLAB file", "Convert them to COCO json, or to label images"),
    (r"(?<!\.nii)\.gz$|\.(roi|zip)$", "", "an archive or ImageJ's ROIs",
     "Unpack it, or save a label image"),
    (r"\.(hei[cf]|dcm|nii(\.gz)?|svs|czi|nd2|lif)$", "", "a kind of image", _IMAGES),
)  # fmt: skip
_SUPPORTED = (
    "COCO json, YOLO (data.yaml, obj.names or classes.txt), PASCAL VOC, json of LabelMe, CSV of "
    "boxes, and images with masks (a_mask.png or masks/a.png for a.jpg)"
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
                    open_table(file)  # raises what is wrong with it
                    return f"{file}: is COCO json already: use it with `detlite init --data {file}`"
                return f"{file}: is {name}, which is not supported. {advice or _COCO}"
    for file in tree.with_suffix(".json")[:1]:
        read_json(file)
    counts = Counter(file.suffix or file.name for file in tree.files)
    found = ", ".join(f"{count} {kind}" for kind, count in counts.most_common(5)) or "nothing"
    for file in tree.with_suffix(".json", ".jsonl", ".xml", ".csv", ".txt")[:1]:
        found += f"; {file} begins with {short_repr(excerpt(file).lstrip()[:80])}"
    _, masks = find_masks(tree) if tree.data.is_dir() else ({}, [])
    if masks:
        found += f"; {masks[0]} seems to be a mask, but no image has its name. {NAMES}"
    return (
        f"{tree.data}: contains no annotations of a supported format, but {found}. Supported: "
        f"{_SUPPORTED}. In the tool that wrote them, choose the export COCO json (docs/formats.md "
        "lists the names of exports), or convert them to COCO json"
    )
