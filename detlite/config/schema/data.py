"""Keys of input images, datasets and data loading."""

from detlite.config.key import (
    Key,
    catalog,
    each,
    fraction,
    in_range,
    name_pairs,
    not_negative,
    one_of,
    positive,
    strings,
    value_range,
)

_INPUT = {
    Key("MIN_SIZE_TRAIN", (800,), each(positive)): "short sides in training, one drawn per image",
    Key("MAX_SIZE_TRAIN", 1333, positive): "maximum long side in training",
    Key("MIN_SIZE_TEST", 800, positive): (
        "short side of images in evaluation, in pixels; sizes far from MIN_SIZE_TRAIN lower the AP"
    ),
    Key("MAX_SIZE_TEST", 1333, positive): "maximum long side in evaluation",
    Key("PIXEL_MEAN", [102.9801, 115.9465, 122.7717], each(in_range(0, 255))): (
        "channel means to subtract, in the order and scale set by TO_BGR255; the number of values "
        "determines the number of channels of the model"
    ),
    Key("PIXEL_STD", [1.0, 1.0, 1.0], each(positive)): "channel standard deviations to divide by",
    Key("TO_BGR255", True): "input from 0 to 255, in BGR order; False: 0 to 1, in RGB order",
    Key("IMAGE_BITS", 16, in_range(8, 16)): "used bits of 16-bit images; the highest 8 are kept",
    Key("VALUE_RANGE", (), value_range): (
        "values (low, high) of 16-bit and float images that become 0 and 255: one pair for all "
        "channels, or one pair per channel; (): use IMAGE_BITS"
    ),
    Key("BRIGHTNESS", 0.0, not_negative): "color jitter: maximum relative change of brightness",
    Key("CONTRAST", 0.0, not_negative): "color jitter: maximum relative change of contrast",
    Key("SATURATION", 0.0, not_negative): "color jitter: maximum relative change of saturation",
    Key("HUE", 0.0, in_range(0, 0.5)): "color jitter: maximum change of hue; 0.5 is half a turn",
    Key("HORIZONTAL_FLIP_PROB_TRAIN", 0.5, fraction): "probability of a horizontal flip",
    Key("VERTICAL_FLIP_PROB_TRAIN", 0.0, fraction): "probability of a vertical flip",
    Key("ROTATION", 0.0, in_range(0, 180)): (
        "maximum angle of random rotations in degrees; corners have the mean color"
    ),
    Key("TRANSFORMS", (), strings): (
        "names of registered transforms, applied to training images after all others; see IMPORTS"
    ),
    Key("TILE", 0, not_negative): (
        "train on overlapping tiles with this side, in pixels of the original images. Tiles are "
        "resized like images. 0: train on whole images. TEST.TILE does the same in evaluation"
    ),
    Key("MIN_AREA", 0, not_negative): (
        "objects with fewer pixels in the original image are ignored regions: they are neither "
        "trained nor measured. 0: all objects are used"
    ),
    Key("COPY_PASTE_PROB", 0.0, fraction): "probability of pasting objects from another image",
}
_DATASETS = {
    Key("TRAIN", (), strings): "names of the training sets, built in or in CATALOG",
    Key("TEST", (), strings): "names of the evaluation sets, built in or in CATALOG",
    Key("ROOT", "datasets"): "folder or URL of all datasets; ${VARIABLE:-default} is expanded",
    Key("CATALOG", [], catalog): "your datasets: {name, annotations, images}, see docs/data.md",
    Key("ON_BAD_ANNOTATION", "error", one_of("error", "skip")): (
        "error: stop at invalid annotations; skip: skip them, and ignore the regions of objects "
        "with a known position in training and evaluation"
    ),
    Key("CROWDS_AS_OBJECTS", False): (
        "treat annotations with iscrowd 1 like other objects; CVAT writes iscrowd 1 for every mask "
        "drawn with the brush"
    ),
    Key("KEYPOINT_FLIP_PAIRS", [], name_pairs): (
        "pairs [left, right] of keypoint names that horizontal flips swap, in addition to names "
        "that differ in left and right, L and R, or l and r"
    ),
    Key("BACKGROUND_IMAGES", False): "also train on images without annotations",
    Key("CHECK_IMAGES", True): "check all image files when a dataset is opened for the first time",
    Key("CACHE_GB", 20.0, not_negative): (
        "size limit in GiB of each cache in the folder DETLITE_CACHE: images from URLs, and large "
        "images at a reduced size. The least recently used images are removed; 0: no cache"
    ),
    Key("MAX_PIXELS", 178_956_970, positive): "maximum pixels of an image; the default is Pillow's",
    Key("MIN_KEYPOINTS_PER_IMAGE", 0, not_negative): (
        "skip training images with fewer labeled keypoints (maskrcnn-benchmark: 10, detectron2: 1)"
    ),
    Key("PROPOSAL_FILES_TRAIN", (), strings): (
        "with MODEL.LOAD_PROPOSALS: a proposal file for each set in TRAIN, relative to ROOT: "
        "detectron2's .pkl, or COCO results as .json"
    ),
    Key("PROPOSAL_FILES_TEST", (), strings): "a proposal file for each set in TEST",
    Key("PRECOMPUTED_PROPOSAL_TOPK_TRAIN", 2000, positive): "proposals per image, in training",
    Key("PRECOMPUTED_PROPOSAL_TOPK_TEST", 1000, positive): "proposals per image, in evaluation",
}
_DATALOADER = {
    Key("NUM_WORKERS", None, not_negative, optional_type=int): (
        "number of loader processes; 0: load in the main process; None: 4, or the number of cores "
        "of a process if there are fewer"
    ),
    Key("CACHE", 0.0, not_negative): (
        "GiB of memory for decoded training images, which then are decoded only once; 0: none. The "
        "first images that fit are kept"
    ),
    Key("SIZE_DIVISIBILITY", 0, in_range(0, 4096)): (
        "pad sides to a multiple of this number; 0: none"
    ),
    Key("ASPECT_RATIO_GROUPING", True): "put only wide or only tall images into a batch",
    Key("REPEAT_THRESHOLD", 0.0, fraction): (
        "repeat the images of each category that appears in a fraction f of the training images "
        "below this threshold, sqrt(threshold / f) times (LVIS: 0.001); 0: no repetition"
    ),
}

SECTIONS = {
    "INPUT": _INPUT,
    "DATASETS": _DATASETS,
    "DATALOADER": _DATALOADER,
}
