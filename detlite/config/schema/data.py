"""Keys of input images, data sets and data loading."""

from detlite.config.checks import (
    below_one,
    catalog,
    each,
    fraction,
    in_range,
    name_pairs,
    not_negative,
    one_of,
    positive,
    scale_range,
    strings,
    value_range,
)

from .key import Key, section

_INPUT = section(
    "INPUT",
    Key("MIN_SIZE_TRAIN", (800,), "short sides in training, one drawn per image", each(positive)),
    Key("MAX_SIZE_TRAIN", 1333, "limit for the long side in training", positive),
    Key("MIN_SIZE_TEST", 800, "short side of images in evaluation, in pixels", positive),
    Key("MAX_SIZE_TEST", 1333, "limit for the long side in evaluation", positive),
    Key(
        "PIXEL_MEAN",
        [102.9801, 115.9465, 122.7717],
        "channel means to subtract, in the order and scale set by TO_BGR255; their number is the "
        "number of channels of the model",
        each(in_range(0, 255)),
    ),
    Key("PIXEL_STD", [1.0, 1.0, 1.0], "channel standard deviations to divide by", each(positive)),
    Key(
        "TO_BGR255",
        True,
        "input of the model: 0 to 255, and BGR if it has three channels; False: RGB from 0 to 1",
    ),
    Key("IMAGE_BITS", 16, "used bits of 16-bit images; the highest 8 are kept", in_range(8, 16)),
    Key(
        "VALUE_RANGE",
        (),
        "values (low, high) of 16-bit and float images that become 0 and 255, for all channels, or "
        "one pair after the other for each; (): by IMAGE_BITS",
        value_range,
    ),
    Key("BRIGHTNESS", 0.0, "color jitter: largest relative change of the brightness", not_negative),
    Key("CONTRAST", 0.0, "the same for the contrast", not_negative),
    Key("SATURATION", 0.0, "the same for the saturation", not_negative),
    Key("HUE", 0.0, "color jitter: largest change of hue; 0.5 is half a turn", in_range(0, 0.5)),
    Key("HORIZONTAL_FLIP_PROB_TRAIN", 0.5, "probability of a horizontal flip", fraction),
    Key("VERTICAL_FLIP_PROB_TRAIN", 0.0, "probability of a vertical flip", fraction),
    Key(
        "ROTATION",
        0.0,
        "largest angle in degrees of a random rotation; corners are filled with the mean color",
        in_range(0, 180),
    ),
    Key("QUARTER_TURNS", False, "turn by 0, 90, 180 or 270 degrees at random"),
    Key(
        "SCALE_JITTER",
        (),
        "large-scale jitter, replaces MIN_SIZE_TRAIN: smallest and largest factor of the size that "
        "fits CROP_SIZE, such as (0.1, 2.0); (): off",
        scale_range,
    ),
    Key("CROP_SIZE", 1024, "with SCALE_JITTER: side of the square to crop or pad to", positive),
    Key("MOSAIC_PROB", 0.0, "probability of combining four training images", fraction),
    Key(
        "TRANSFORMS",
        (),
        "names of registered transforms that change training images last, see IMPORTS",
        strings,
    ),
    Key(
        "TILE",
        0,
        "train on overlapping tiles of this side in pixels of the original images, which are then "
        "resized as images are; 0: on whole images. TEST.TILE is the same for evaluation",
        not_negative,
    ),
    Key(
        "TILE_OVERLAP", 0.2, "least overlap of training tiles, as a fraction of the side", below_one
    ),
    Key("COPY_PASTE_PROB", 0.0, "probability of pasting objects of another image", fraction),
)
_DATASETS = section(
    "DATASETS",
    Key("TRAIN", (), "names of the training sets, built in or in CATALOG", strings),
    Key("TEST", (), "names of the evaluation sets, built in or in CATALOG", strings),
    Key("ROOT", "datasets", "folder or URL of all data sets; ${VARIABLE:-default} is expanded"),
    Key("CATALOG", [], "your data sets: {name, annotations, images}, see docs/data.md", catalog),
    Key(
        "ON_BAD_ANNOTATION",
        "error",
        "invalid annotations: stop with an error, or skip them, which makes objects whose place is "
        "known ignored regions in training and evaluation",
        one_of("error", "skip"),
    ),
    Key(
        "CROWDS_AS_OBJECTS",
        False,
        "train on and measure annotations with iscrowd 1 like other objects; CVAT writes it for "
        "every mask drawn by brush",
    ),
    Key(
        "KEYPOINT_FLIP_PAIRS",
        [],
        "pairs [left, right] of keypoint names that mirroring exchanges; empty: names that differ "
        "in left and right, L and R, or l and r",
        name_pairs,
    ),
    Key("BACKGROUND_IMAGES", False, "also train on images without annotations"),
    Key("CHECK_IMAGES", True, "check all image files when a set is first opened, not when reading"),
    Key(
        "CACHE_GB",
        20.0,
        "size limit in GiB of the caches (folder: DETLITE_CACHE) of images from URLs and of large "
        "images at a reduced size, each of which keeps the most recently used ones; 0: no cache",
        not_negative,
    ),
    Key("MAX_PIXELS", 178_956_970, "larger images are invalid; the default is Pillow's", positive),
    Key(
        "MIN_KEYPOINTS_PER_IMAGE",
        0,
        "skip training images with fewer labeled keypoints (maskrcnn-benchmark: 10, detectron2: 1)",
        not_negative,
    ),
    Key(
        "PROPOSAL_FILES_TRAIN",
        (),
        "with MODEL.LOAD_PROPOSALS: the proposal file of each set in TRAIN, relative to ROOT: "
        "detectron2's .pkl or a .json of COCO results",
        strings,
    ),
    Key("PROPOSAL_FILES_TEST", (), "the same for the sets in TEST", strings),
    Key("PRECOMPUTED_PROPOSAL_TOPK_TRAIN", 2000, "proposals used per image, in training", positive),
    Key("PRECOMPUTED_PROPOSAL_TOPK_TEST", 1000, "the same in evaluation", positive),
)
_DATALOADER = section(
    "DATALOADER",
    Key("NUM_WORKERS", 4, "loader processes; 0: load in the main process", not_negative),
    Key("SIZE_DIVISIBILITY", 0, "pad sides to a multiple of this number; 0: do not", not_negative),
    Key("ASPECT_RATIO_GROUPING", True, "put only wide or only tall images into a batch"),
    Key("SHARD_SHUFFLE", 2000, "size of the shuffle buffer for images from shards", positive),
    Key(
        "REPEAT_THRESHOLD",
        0.0,
        "repeat images of categories that appear in a smaller fraction f of the training images, "
        "sqrt(threshold / f) times (LVIS: 0.001); 0: no repetition",
        fraction,
    ),
)

KEYS = (*_INPUT, *_DATASETS, *_DATALOADER)
