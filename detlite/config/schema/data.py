"""Keys of input images, data sets and data loading."""

from __future__ import annotations

from detlite.config.checks import (
    catalog,
    each,
    fraction,
    in_range,
    not_negative,
    one_of,
    positive,
    scale_range,
    strings,
)

from .key import Key, section

_INPUT = section(
    "INPUT",
    Key(
        "MIN_SIZE_TRAIN",
        (800,),
        "short side of training images in pixels; one value is drawn per image",
        each(positive),
    ),
    Key("MAX_SIZE_TRAIN", 1333, "limit for the long side in training", positive),
    Key("MIN_SIZE_TEST", 800, "short side of images in evaluation, in pixels", positive),
    Key("MAX_SIZE_TEST", 1333, "limit for the long side in evaluation", positive),
    Key(
        "PIXEL_MEAN",
        [102.9801, 115.9465, 122.7717],
        "channel means to subtract, in the order and scale set by TO_BGR255",
        each(in_range(0, 255), 3),
    ),
    Key(
        "IMAGE_BITS",
        16,
        "used bits of 16-bit images, such as 12 of many cameras; the highest 8 of them are kept",
        in_range(8, 16),
    ),
    Key(
        "PIXEL_STD", [1.0, 1.0, 1.0], "channel standard deviations to divide by", each(positive, 3)
    ),
    Key(
        "TO_BGR255",
        True,
        "feed the model BGR from 0 to 255 (original weights); False: RGB from 0 to 1",
    ),
    Key("BRIGHTNESS", 0.0, "color jitter: largest relative change of the brightness", not_negative),
    Key("CONTRAST", 0.0, "the same for the contrast", not_negative),
    Key("SATURATION", 0.0, "the same for the saturation", not_negative),
    Key(
        "HUE",
        0.0,
        "color jitter: largest change of the hue, as a fraction of the circle",
        in_range(0, 0.5),
    ),
    Key("HORIZONTAL_FLIP_PROB_TRAIN", 0.5, "probability of a horizontal flip", fraction),
    Key("VERTICAL_FLIP_PROB_TRAIN", 0.0, "probability of a vertical flip", fraction),
    Key(
        "SCALE_JITTER",
        (),
        "large-scale jitter, replaces MIN_SIZE_TRAIN: smallest and largest factor of the size that "
        "fits CROP_SIZE, such as (0.1, 2.0); (): off",
        scale_range,
    ),
    Key(
        "CROP_SIZE",
        1024,
        "with SCALE_JITTER: side of the square to crop or pad images to",
        positive,
    ),
    Key(
        "MOSAIC_PROB",
        0.0,
        "mosaic: probability of combining windows of four training images",
        fraction,
    ),
    Key(
        "COPY_PASTE_PROB",
        0.0,
        "copy-paste: probability of pasting objects of another training image",
        fraction,
    ),
)
_DATASETS = section(
    "DATASETS",
    Key("TRAIN", (), "names of the training sets, built in or in CATALOG", strings),
    Key("TEST", (), "names of the evaluation sets, built in or in CATALOG", strings),
    Key(
        "ROOT",
        "datasets",
        "folder of all data sets, or a URL such as s3://bucket/folder; ${VARIABLE:-default} is "
        "expanded",
    ),
    Key(
        "CATALOG",
        [],
        "your data sets: a list of {name, annotations, images}, see docs/data.md",
        catalog,
    ),
    Key(
        "ON_BAD_ANNOTATION",
        "error",
        "invalid annotations: stop with an error, or log, count and skip them",
        one_of("error", "skip"),
    ),
    Key(
        "BACKGROUND_IMAGES",
        False,
        "also train on images without annotations, as examples of background; False: skip them",
    ),
    Key(
        "CHECK_IMAGES",
        True,
        "check every image file when a set is first opened; False: report a damaged file when "
        "reading it",
    ),
    Key(
        "CACHE_GB",
        20.0,
        "size limit in GiB of the cache of images from URLs (folder: DETLITE_CACHE), which keeps "
        "the most recently used ones; 0: no cache",
        not_negative,
    ),
    Key(
        "MAX_PIXELS",
        178_956_970,
        "images with more pixels are invalid; the default is Pillow's",
        positive,
    ),
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
    Key(
        "PRECOMPUTED_PROPOSAL_TOPK_TRAIN",
        2000,
        "highest-scoring proposals used per image, in training",
        positive,
    ),
    Key("PRECOMPUTED_PROPOSAL_TOPK_TEST", 1000, "the same in evaluation", positive),
)
_DATALOADER = section(
    "DATALOADER",
    Key(
        "NUM_WORKERS",
        4,
        "worker processes of the data loader; 0: load in the main process",
        not_negative,
    ),
    Key(
        "SIZE_DIVISIBILITY",
        0,
        "pad batches to a multiple of this number of pixels; 0: no multiple",
        not_negative,
    ),
    Key(
        "ASPECT_RATIO_GROUPING",
        True,
        "put only wide or only tall images into a batch, which saves padding",
    ),
    Key(
        "SHARD_SHUFFLE",
        2000,
        "size of the shuffle buffer for images that are read sequentially from shards",
        positive,
    ),
    Key(
        "REPEAT_THRESHOLD",
        0.0,
        "repeat images of categories that appear in a smaller fraction f of the training images, "
        "sqrt(threshold / f) times (LVIS: 0.001); 0: no repetition",
        fraction,
    ),
)

KEYS = (*_INPUT, *_DATASETS, *_DATALOADER)
