"""Detect objects in images, folders of images, or a video.

    detlite predict --weights model_final.pth --input photos extra.png --output found
    detlite predict --weights model_final.pth --input 'photos/**/*.jpg' --output found --format csv
    detlite predict --weights model_final.pth --input photos --output labels --format coco
    detlite predict --weights model_final.pth --input list.txt --output found --format csv \\
        --draw none --workers 8

--input accepts images and videos: files, folders, globs, zip files, URLs (http, s3, rtsp ...),
lists of them (a .txt file, a .csv file, or - for the standard input), and the number of a camera.

Files in the output folder:
    drawn/0001_<name>.jpg   each image with its detections; 1 is its image_id. A video: .mp4
    results.json            all detections as COCO results, or results.csv
    summary.csv             with --format csv or measures: number, density and size of the objects
    label_images/*.tif      with --label-images tiff: 16-bit images, value k is the k-th object
    images.json             file name and size of each image_id and the categories, as a COCO file
                            without annotations: COCO("images.json").loadRes("results.json")
    manifest.json           the command and its totals
    progress.jsonl          which images are finished or unreadable

With a format of labels, images/ has copies of the images, and these files have their labels:
    annotations.json        coco: polygons, also for CVAT
    labels/*.txt            yolo, and data.yaml with the categories
    images/*.json           labelme, and labels.txt with the categories
    tasks.json              label-studio: import them into a project with the labeling configuration
                            labels.xml
With --format geojson, geojson/*.geojson has the objects of each image for QuPath.

To continue an interrupted run, repeat the command.

Exit status: 0; 1 if an image could not be read (it is reported and skipped); 2 for an error that
you can fix; 130 after Ctrl-C.
"""

from argparse import BooleanOptionalAction, Namespace
from pathlib import Path

from .options import DEVICE, FONT, OVERRIDES, THRESHOLD, TRUST, config, flag, option, weights

INTERRUPTED = "interrupted: the same command continues with the remaining images"
FORMATS = ("results", "csv", "measures", "coco", "yolo", "labelme", "label-studio", "geojson")

OPTIONS = (
    weights("checkpoint of detlite or of another framework, or an exported model", required=True),
    TRUST,
    config(),
    option("--input", "IMAGES", "images and videos: files, folders, globs, zip files, URLs, lists "
           "(.txt, .csv, -), or the number of a camera", dest="inputs", required=True, nargs="+"),
    option("--output", "FOLDER", "output folder", type=Path, required=True),
    THRESHOLD,
    option("--batch-size", "N", "number of images of similar size to run together", 1,
           minimum=1),
    option("--threads", "N", "number of threads that read, resize and draw images", 2,
           minimum=1),
    option("--draw", None, "format of the drawn images", "jpeg", choices=["jpeg", "png", "none"]),
    option("--labels", None, "draw the names and scores of all objects or none (default: where "
           "there is room)", action=BooleanOptionalAction),
    option("--format", None, "results, csv: the detections; measures: a CSV file of "
           "areas, perimeters, intensities and centroids; coco, yolo, labelme, label-studio: "
           "labels to correct, with copies of the images; geojson: objects for QuPath", "results",
           choices=FORMATS),
    option("--label-images", None, "also write 16-bit label images for ImageJ and napari; each "
           "value is an object", choices=["tiff", "png"]),
    option("--workers", "N", "number of processes of Ray Data, on this or several machines, each "
           "with a GPU if there are enough (default: this process predicts)", type=int,
           minimum=1),
    flag("--overwrite", "replace another run in the output folder"),
    option("--tile", "SIDE", "cut large images into tiles of SIDE pixels", type=int),
    flag("--track", "track objects through a video and number them"),
    FONT,
    DEVICE,
    OVERRIDES,
)  # fmt: skip


def run(args: Namespace) -> int:
    from detlite.apps.allocator import keep_freed_memory
    from detlite.apps.batch_predict.predict_run import predict

    keep_freed_memory()
    totals = predict(args)
    print(f"{totals}: see {args.output}")
    return 1 if totals.unreadable else 0
