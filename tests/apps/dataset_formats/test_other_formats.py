"""Test the recognition of unsupported formats."""

import pytest

from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.files.errors import DataError

COCO = (
    '{"images": [{"id": 1, "file_name": "a"}], "annotations": [], '
    '"categories": [{"id": 1, "name": "a"}]}'
)
POLYGON = "0 0.1 0.2" + " 0.3 0.4" * 6 + "\n"
CORNERS = "Car 0.00 0 1.85 387 181 423 203 1 1 1 1 1 1 1"
QUPATH = '{"type": "FeatureCollection", "features": [{"properties": {"objectType": "cell"}}]}'
MAP = '{"type": "FeatureCollection", "crs": {}, "features": [{"properties": {"id": 1}}]}'
OTHER = "contains no annotations of a supported format, but "


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.xml", "<annotations><image/></annotations>", "choose the export COCO 1.0"),
        ("b.json", '[{"version": 0, "shapes": [], "tracks": []}]', "a CVAT backup"),
        ("via.csv", "filename,region_shape_attributes\n", "is csv of VIA"),
        ("via.json", '{"a": {"regions": [{"region_attributes": {}}]}}', "is json of VIA"),
        ("project.json", '{"_via_img_metadata": {}}', "is json of VIA, which is not"),
        ("tasks.json", '[{"annotations": [{"result": [{"from_name": 1}]}]}]', "In Label Studio, "),
        ("c.json", '[{"image": "a", "annotations": [{"coordinates": {"x": 1}}]}]', "is CreateML"),
        ("ann/a.png.json", '{"objects": [{"classTitle": "cat"}]}', "is Supervisely"),
        ("default.json", '{"items": [{"annotations": [{"label_id": 0}]}]}', "is Datumaro"),
        ("export.json", '{"assets": {"1": {"asset": {}}}}', "which is not supported. In VoTT"),
        ("export.csv", '"image","xmin","ymin"\n', "is VoTT"),
        ("boxes.csv", "ImageID,Source,LabelName,Confidence\n", "is Open Images"),
        ("p.json", '{"annotations": [{"segments_info": []}], "images": 1}', "is COCO panoptic"),
        ("a_gtFine_polygons.json", '{"imgHeight": 1, "objects": []}', "type: cityscapes"),
        ("u.ndjson", '{"type": "dataset", "class_names": {}}\n', "is NDJSON of Ultralytics"),
        ("q.geojson", QUPATH, "is GeoJSON of QuPath, which is not supported. Export label images"),
        ("AOI_2_RIO.geojson", MAP, "is GeoJSON of maps, such as SpaceNet, which is not"),
        ("s.json", '{"dataset": {"samples": [{"label_status": "LABELED"}]}}', "is Segments.ai"),
        ("f.json", '{"samples": [{"_cls": "Detection"}]}', "Use dataset.export"),
        ("d.json", '[{"annotations": [{"bbox_mode": 1}]}]', "is detectron2 or mmdetection"),
        ("l.json", '[{"labels": [{"poly2d": [{"vertices": []}]}]}]', "is BDD100K or Scalabel"),
        ("r.json", '[{"image_id": 1, "category_id": 1, "score": 0.9}]', "is COCO results"),
        ("old.xml", "<annotation><object><polygon><pt></pt></object>", "is LabelMe's old XML"),
        ("training/label_2/0.txt", CORNERS, "is KITTI"),
        ("labels/0.txt", CORNERS + " 0.9\n", "is KITTI"),
        ("labels/0.txt", "0 0.5 0.5 0.1 0.1\n", "is YOLO whose files match no image"),
        ("labels/0.txt", POLYGON, "is YOLO"),
        ("masks.npy", "", "is a NumPy file, which is not supported. Save"),
        ("train/x.tfrecord", "", "is TFRecord, which is not supported. In the tool"),
        ("a.json", '{"categories": [], "info": {}}', "a json file without images and annotations"),
        ("e.ndjson", '{"data_row": {}}', "is Labelbox"),
        ("v7.json", '{"version": "2.0", "item": {"slots": []}}', "is V7 Darwin"),
        ("0.txt", "1 1 9 1 9 9 1 9 large-vehicle 0\n", "is DOTA"),
        ("gt_img_1.txt", '38,43,920,43,920,215,38,215,"Tired"\n', "is ICDAR"),
        ("b.csv", "img_fName,img_w,class_label,bbx_xtl\n", "is CSV of boxes with other columns"),
        ("v.csv", "TRAINING,gs://b/a.jpg,cat,0.1,0.1,,,0.3,0.3,,\n", "is CSV of boxes with"),
        ("t.csv", "ImageId,EncodedPixels\na.jpg,1 3\n", "is CSV of run lengths"),
        ("c.csv", "scorer,x,x\nbodyparts,nose,nose\n", "is DeepLabCut"),
        ("e.json", '[{"data_units": {}}]', "is Hasty or Encord"),
        ("m.json", '[{"dataset": "MPI", "joint_self": []}]', "is MPII"),
        ("a.json", '{"objects": [{"label": "a--b", "polygon": [[0, 1]]}]}', "is Mapillary Vistas"),
        ("s.json", '{"image": {}, "annotations": [{"predicted_iou": 1}]}', "is Segment Anything"),
        ("s.json", '[{"task_id": "1", "response": [{"left": 1}]}]', "is Scale AI"),
        ("i.xml", "<dataset><images><image><box top='1'/></image></images></dataset>", "imglab"),
        ("_annotations.txt", "a.jpg 10,10,40,50,0 20,20,50,60,1\n", "keras-yolo3"),
        ("o.json", '{"openlabel": {"frames": {}}}', "is OpenLABEL"),
        ("s.json", '[{"answers": {"Output": {"shapes": [{"points": []}]}}}]', "is Sama"),
        ("c.json", '[{"regions": [{"tagName": "cat", "left": 0.1}]}]', "is Azure Custom Vision"),
        ("i.json", '{"info": {"description": "ISAT"}, "objects": []}', "In ISAT, convert it"),
        ("k.json", '{"people": [{"pose_keypoints_2d": []}]}', "is nuImages or OpenPose"),
        ("e.json", '{"identity": "frame", "children": []}', "is CityPersons or EuroCity"),
        ("m.manifest", '{"source-ref": "s3://b/a.jpg"}\n', "is SageMaker or Rekognition"),
        ("z.jsonl", '{"label": [{"topX": 0.1}]}\n', "is Vertex AI or Azure ML"),
        ("p.jsonl", '{"image": "a.jpg", "spans": []}\n', "is Prodigy"),
        ("train.odgt", '{"ID": "a", "gtboxes": []}\n', "is CrowdHuman"),
        ("f.xml", "<annotation><object><points><point>1,2</point></object>", "is FAIR1M"),
        ("gt/M01_gt.txt", "1,1,368,150,20,30,1,-1,-1\n", "is MOT or UAVDT"),
        ("labels/0.txt", "684,8,273,116,0,0,0,0\n1,2,3,4,1,4,0,1,\n", "is VisDrone"),
        ("truth/a.txt", "cat 10 20 30 40\nsofa 1 2 3 4 difficult\n", "is text of corners"),
        ("joints.mat", "", "is a MATLAB file"),
        ("a.json.gz", "", "Unpack it"),
        ("scan.dcm", "", "register a reader"),
        ("volume.nii.gz", "", "a kind of image"),
        ("c.json", '{"images": [], "annotations": [], "cat', "c.json: not valid JSON"),
        ("c.json", '[{"images": [], "annotations": []}]', "a JSON list, not an object"),
        ("c.json", '{"images": [], "annotations": [], "categories": {}}', "'categories' must be a"),
        ("c.json", "{'images': []}", "it has single quotes like printed Python"),
        ("c.json", '{"Images": [], "Annotations": [], "Categories": []}', "Images in lower case"),
        ("a/b/c/c.json", COCO, "is COCO json already: use it with `detlite init --data "),
        ("x.json", '{"lanes": [[1]], "raw_file": "a"}', 'begins with \'{"lanes": [[1]], "raw_fi'),
        ("readme.md", "", OTHER + "1 .md. Supported:"),
    ],
)
def test_formats_are_named(tmp_path, text, name, content, expected):
    text(tmp_path / name, content)
    with pytest.raises(DataError) as raised:
        read_folder(tmp_path)
    assert expected in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path))
