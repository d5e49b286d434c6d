"""Keys of the input pictures, the data sets and their loading."""

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
    Key("MIN_SIZE_TRAIN", (800,), "short side in pixels, one drawn for each image", each(positive)),
    Key("MAX_SIZE_TRAIN", 1333, "longest side in training", positive),
    Key("MIN_SIZE_TEST", 800, "short side in evaluation", positive),
    Key("MAX_SIZE_TEST", 1333, "longest side in evaluation", positive),
    Key(
        "PIXEL_MEAN",
        [102.9801, 115.9465, 122.7717],
        "subtracted, in the order and scale that TO_BGR255 sets",
        each(in_range(0, 255), 3),
    ),
    Key(
        "PICTURE_BITS",
        16,
        "bits that 16-bit pictures use, such as a camera's 12; the highest 8 of them are kept",
        in_range(8, 16),
    ),
    Key("PIXEL_STD", [1.0, 1.0, 1.0], "divided by", each(positive, 3)),
    Key("TO_BGR255", True, "feed BGR 0..255 (original weights) or RGB 0..1"),
    Key("BRIGHTNESS", 0.0, "colour jitter: largest relative change", not_negative),
    Key("CONTRAST", 0.0, "colour jitter", not_negative),
    Key("SATURATION", 0.0, "colour jitter", not_negative),
    Key("HUE", 0.0, "colour jitter", in_range(0, 0.5)),
    Key("HORIZONTAL_FLIP_PROB_TRAIN", 0.5, "probability of a left-right flip", fraction),
    Key("VERTICAL_FLIP_PROB_TRAIN", 0.0, "probability of an up-down flip", fraction),
    Key(
        "SCALE_JITTER",
        (),
        "large-scale jitter, instead of MIN_SIZE_TRAIN: smallest and largest factor, such as (0.1, "
        "2.0), of the size that just fits CROP_SIZE; (): off",
        scale_range,
    ),
    Key(
        "CROP_SIZE",
        1024,
        "under SCALE_JITTER: side of the square that images are then cut or padded to",
        positive,
    ),
    Key(
        "MOSAIC_PROB",
        0.0,
        "probability that an image is made of windows of four training pictures",
        fraction,
    ),
    Key(
        "COPY_PASTE_PROB",
        0.0,
        "probability that objects of another training picture are pasted into an image",
        fraction,
    ),
)
_DATASETS = section(
    "DATASETS",
    Key("TRAIN", (), "training sets, by name in CATALOG or built in", strings),
    Key("TEST", (), "evaluation sets, by name in CATALOG or built in", strings),
    Key(
        "ROOT",
        "datasets",
        "folder that the entries' paths are relative to, or a URL such as s3://bucket/folder; may "
        "hold ${VARIABLE:-default}",
    ),
    Key("CATALOG", [], "data sets: {name, annotations, images}", catalog),
    Key(
        "ON_BAD_ANNOTATION",
        "error",
        "bad annotations: stop, or log, count and skip",
        one_of("error", "skip"),
    ),
    Key(
        "BACKGROUND_PICTURES",
        False,
        "train also on pictures without any annotation, in which there is nothing to find; False: "
        "leave them out",
    ),
    Key(
        "CHECK_PICTURES",
        True,
        "look at every picture when a set is first opened; False: a bad one shows when it is read",
    ),
    Key(
        "CACHE_GB",
        20.0,
        "GiB of pictures from URLs that are kept in DETLITE_CACHE, those used last; 0: none",
        not_negative,
    ),
    Key("MAX_PIXELS", 178_956_970, "pictures with more are bad; the default is Pillow's", positive),
    Key(
        "MIN_KEYPOINTS_PER_IMAGE",
        0,
        "training leaves out images with fewer labelled keypoints (maskrcnn-benchmark: 10, "
        "detectron2: 1)",
        not_negative,
    ),
    Key(
        "PROPOSAL_FILES_TRAIN",
        (),
        "under MODEL.LOAD_PROPOSALS: for each set of TRAIN the file of its proposals, relative to "
        "ROOT: detectron2's .pkl, or a .json of COCO results",
        strings,
    ),
    Key("PROPOSAL_FILES_TEST", (), "the same for each set of TEST", strings),
    Key("PRECOMPUTED_PROPOSAL_TOPK_TRAIN", 2000, "best proposals per image in training", positive),
    Key("PRECOMPUTED_PROPOSAL_TOPK_TEST", 1000, "the same in evaluation", positive),
)
_DATALOADER = section(
    "DATALOADER",
    Key("NUM_WORKERS", 4, "loader processes; 0: load in the main process", not_negative),
    Key("SIZE_DIVISIBILITY", 0, "batches are padded to a multiple of it", not_negative),
    Key("ASPECT_RATIO_GROUPING", True, "batches of only wide or only tall images"),
    Key(
        "SHARD_SHUFFLE",
        2000,
        "images that are shuffled among themselves where pictures are read from shards in sequence",
        positive,
    ),
    Key(
        "REPEAT_THRESHOLD",
        0.0,
        "categories in a smaller fraction f of the training images are repeated, sqrt(this / f) "
        "times (LVIS: 0.001); 0: every image as often",
        fraction,
    ),
)

KEYS = (*_INPUT, *_DATASETS, *_DATALOADER)
