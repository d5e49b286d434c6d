"""Test the recognition of unsupported formats."""

import pytest

from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.files.errors import DataError


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "a.xml",
            "<annotations><image/></annotations>",
            "is XML of CVAT, which is not supported. In CVAT, choose the export COCO 1.0",
        ),
        ("via.csv", "filename,region_shape_attributes\n", "is csv of VIA"),
        ("via.json", '{"a": {"regions": [{"region_attributes": {}}]}}', "is json of VIA"),
        ("project.json", '{"_via_img_metadata": {}}', "is json of VIA, which is not"),
        ("tasks.json", '[{"annotations": [{"result": [{"from_name": 1}]}]}]', "In Label Studio, "),
        ("c.json", '[{"image": "a", "annotations": [{"coordinates": {"x": 1}}]}]', "is CreateML"),
        ("ann/a.png.json", '{"objects": [{"classTitle": "cat"}]}', "is Supervisely"),
        ("default.json", '{"items": [{"annotations": [{"label_id": 0}]}]}', "is Datumaro"),
        ("train/x.tfrecord", "", "is TFRecord, which is not supported. In the tool"),
        ("boxes.csv", "ImageID,Source,LabelName,Confidence\n", "is Open Images"),
        ("a.json", '{"categories": [], "info": {}}', "a json file without images and annotations"),
        ("p.json", '{"annotations": [{"segments_info": []}], "images": 1}', "is COCO panoptic"),
        ("a_gtFine_polygons.json", '{"imgHeight": 1, "objects": []}', "type: cityscapes"),
        ("export.ndjson", '{"data_row": {}}', "is Labelbox"),
        ("v7.json", '{"version": "2.0", "item": {"slots": []}}', "is V7 Darwin"),
        ("training/label_2/0.txt", "Car 0.00 0 1.85 387 181 423 203 1 1 1 1 1 1 1", "is KITTI"),
        ("labels/0.txt", "Car 0.00 0 1.85 387 181 423 203 1 1 1 1 1 1 1 0.9\n", "is KITTI"),
        ("labels/0.txt", "0 0.5 0.5 0.1 0.1\n", "is YOLO whose files match no image"),
        ("labels/0.txt", "0 0.1 0.2" + " 0.3 0.4" * 6 + "\n", "is YOLO"),
        ("labels/0.txt", "0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 1 0.5 0.2\n", "is YOLO"),
        ("0.txt", "1 1 9 1 9 9 1 9 large-vehicle 0\n", "is DOTA"),
        ("gt_img_1.txt", '38,43,920,43,920,215,38,215,"Tired"\n', "is ICDAR"),
        ("a_gtFine_instanceIds.png", "", "type: cityscapes"),
        ("export.json", '{"assets": {"1": {"asset": {}}}}', "which is not supported. In VoTT"),
        ("export.csv", '"image","xmin","ymin"\n', "is VoTT"),
        ("boxes.csv", "img_fName,img_w,class_label,bbx_xtl,bbx_ytl\n", "CSV of boxes"),
        ("e.json", '[{"data_units": {}}]', "is Hasty or Encord"),
        ("l.json", '[{"data_row": {}}]', "is Labelbox"),
        ("CollectedData.csv", "scorer,x,x\nbodyparts,nose,nose\n", "is DeepLabCut"),
        ("vertex.csv", "TRAINING,gs://b/a.jpg,cat,0.1,0.1,,,0.3,0.3,,\n", "is CSV of boxes"),
        ("mpii.json", '[{"dataset": "MPI", "joint_self": []}]', "is MPII"),
        ("a.json", '{"objects": [{"label": "a--b", "polygon": [[0, 1]]}]}', "is Mapillary Vistas"),
        ("sa_1.json", '{"image": {}, "annotations": [{"predicted_iou": 1}]}', "Segment Anything"),
        ("s.json", '[{"task_id": "1", "response": [{"left": 1}]}]', "is Scale AI"),
        ("joints.mat", "", "is a MATLAB file, which is not supported"),
        ("masks.npy", "", "is a NumPy file, which is not supported. Save"),
        ("scan.dcm", "", "register a reader"),
        ("old.xml", "<annotation><object><polygon><pt></pt></polygon></object>", "old XML"),
        ("h.json", '{"label_classes": [], "images": []}', "is Hasty"),
        ("r.json", '[{"image_id": 1, "category_id": 1, "score": 0.9}]', "is COCO results"),
        (
            "d.json",
            '[{"file_name": "a", "annotations": [{"bbox_mode": 1}]}]',
            "is detectron2 or mmdetection",
        ),
        (
            "q.geojson",
            '{"type": "FeatureCollection", "features": [{"properties": {"objectType": "cell"}}]}',
            "is GeoJSON of QuPath, which is not supported. Export label images",
        ),
        (
            "AOI_2_RIO_img1.geojson",
            '{"type": "FeatureCollection", "crs": {}, "features": [{"properties": {"id": 1}}]}',
            "is GeoJSON of maps, such as SpaceNet, which is not supported. Convert its polygons",
        ),
        ("i.xml", "<dataset><images><image><box top='1'/></image></images></dataset>", "imglab"),
        ("_annotations.txt", "a.jpg 10,10,40,50,0 20,20,50,60,1\n", "keras-yolo3"),
        ("a.json.gz", "", "Unpack it"),
        ("volume.nii.gz", "", "a kind of image"),
        ("c.json", '{"images": [], "annotations": [], "cat', "c.json: not valid JSON"),
        ("c.json", '[{"images": [], "annotations": []}]', "a JSON list, not an object"),
        ("c.json", '{"images": [], "annotations": [], "categories": {}}', "'categories' must be a"),
        ("c.json", "{'images': []}", "it has single quotes like printed Python"),
        (
            "a/b/c/c.json",
            '{"images": [{"id": 1, "file_name": "a"}], "annotations": [], '
            '"categories": [{"id": 1, "name": "a"}]}',
            "but deep in the folder: name it with --data",
        ),
        ("c.json", '{"Images": [], "Annotations": [], "Categories": []}', "Images in lower case"),
        ("t.csv", "ImageId,EncodedPixels\na.jpg,1 3\n", "is CSV of run lengths"),
        ("t.csv", "image_name,BoxesString,domain\n", "is CSV of boxes"),
        ("v.csv", "UNASSIGNED,a.jpg,cat,0.1,0.2,,,0.3,0.4,,\n", "is CSV of boxes"),
        ("o.json", '{"openlabel": {"frames": {}}}', "is OpenLABEL"),
        ("s.json", '[{"answers": {"Output": {"shapes": [{"points": []}]}}}]', "is Sama"),
        ("s.json", '{"dataset": {"samples": [{"label_status": "LABELED"}]}}', "is Segments.ai"),
        ("c.json", '[{"regions": [{"tagName": "cat", "left": 0.1}]}]', "is Azure Custom Vision"),
        (
            "f.json",
            '{"samples": [{"_cls": "Detection"}]}',
            "is FiftyOne, which is not supported. Use dataset.export",
        ),
        ("b.json", '[{"version": 0, "shapes": [], "tracks": []}]', "a CVAT backup"),
        ("i.json", '{"info": {"description": "ISAT"}, "objects": []}', "is ISAT"),
        ("k.json", '{"people": [{"pose_keypoints_2d": []}]}', "OpenPose"),
        ("e.json", '{"identity": "frame", "children": []}', "EuroCity"),
        ("d.json", '{"image": {"original_filename": "a"}, "annotations": []}', "is V7 Darwin"),
        ("l.json", '[{"labels": [{"poly2d": [{"vertices": []}]}]}]', "is BDD100K or Scalabel"),
        ("u.ndjson", '{"type": "dataset", "class_names": {}}\n', "is NDJSON of Ultralytics"),
        ("m.manifest", '{"source-ref": "s3://b/a.jpg"}\n', "is SageMaker or Rekognition"),
        ("v.jsonl", '{"imageGcsUri": "gs://b/a.jpg"}\n', "Vertex AI"),
        ("z.jsonl", '{"label": [{"topX": 0.1}]}\n', "Azure ML"),
        ("p.jsonl", '{"image": "a.jpg", "spans": []}\n', "is Prodigy"),
        ("train.odgt", '{"ID": "a", "gtboxes": []}\n', "is CrowdHuman"),
        ("f.xml", "<annotation><object><points><point>1,2</point></points></object>", "is FAIR1M"),
        ("gt/M01_gt.txt", "1,1,368,150,20,30,1,-1,-1\n", "is MOT or UAVDT"),
        ("annotations/0.txt", "684,8,273,116,0,0,0,0\n1,2,3,4,1,4,0,1,\n", "is VisDrone"),
        ("truth/a.txt", "cat 10 20 30 40\nsofa 1 2 3 4 difficult\n", "is text of corners"),
        (
            "x.json",
            '{"lanes": [[1]], "raw_file": "a"}',
            """begins with '{"lanes": [[1]], "raw_fi""",
        ),
        ("readme.md", "", "contains no annotations of a supported format, but 1 .md. Supported:"),
    ],
)
def test_formats_are_named(tmp_path, text, name, content, expected):
    text(tmp_path / name, content)
    with pytest.raises(DataError) as raised:
        read_folder(tmp_path)
    assert expected in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path))
