"""Keys of the optimizer, its schedule, and how often a run logs, saves and evaluates."""

from __future__ import annotations

from detlite.config.checks import (
    above_up_to_one,
    each,
    fraction,
    in_range,
    length,
    not_negative,
    one_of,
    positive,
    strings,
)

from .key import Key, section

KEYS = section(
    "SOLVER",
    Key("OPTIMIZER", "SGD", "FusedSGD needs NVIDIA's apex", one_of("SGD", "FusedSGD", "AdamW")),
    Key(
        "MAX_ITER",
        40000,
        "length of a run in training steps; stating MAX_EPOCHS or MAX_MINUTES unsets it",
        length,
        int,
    ),
    Key("MAX_EPOCHS", None, "length of a run in passes over the training images", length, float),
    Key(
        "MAX_MINUTES",
        None,
        "length of a run in minutes of training, which the learning rate follows",
        length,
        float,
    ),
    Key(
        "MINUTES_INCLUDE_TEST",
        False,
        "MAX_MINUTES also counts evaluations; the time of the longest so far is kept for the last "
        "one, and without TEST_PERIOD there is one at half time, to know it",
    ),
    Key("IMS_PER_BATCH", 16, "images in a step, over all processes", positive),
    Key(
        "ACCUMULATION_STEPS",
        1,
        "parts of a batch that go through the model one after the other: a step takes the memory "
        "of one of them",
        positive,
    ),
    Key("BASE_LR", 0.001, "learning rate after warm-up", positive),
    Key(
        "AUTO_SCALE_LR",
        False,
        "multiply BASE_LR by IMS_PER_BATCH / REFERENCE_IMS_PER_BATCH",
    ),
    Key("REFERENCE_IMS_PER_BATCH", 16, "AUTO_SCALE_LR: the batch that BASE_LR is for", positive),
    Key("BIAS_LR_FACTOR", 2.0, "learning rate of biases, relative", not_negative),
    Key(
        "BACKBONE_LR_FACTOR",
        1.0,
        "learning rate of the body, relative to the neck's and the heads'",
        positive,
    ),
    Key(
        "LAYER_DECAY",
        1.0,
        "factor of the learning rate from each layer of the body to the one before it, from the "
        "neck on; layers are the stages of a ResNet, of timm's convolutional models and of Swin, "
        "and the blocks of a plain transformer",
        above_up_to_one,
    ),
    Key(
        "BACKBONE_FREEZE_ITERS",
        0,
        "iterations at the start in which the whole body keeps its weights and statistics; "
        "afterwards what MODEL.BACKBONE.FREEZE_CONV_BODY_AT leaves is trained",
        not_negative,
    ),
    Key("MOMENTUM", 0.9, "SGD momentum; AdamW's first beta", in_range(0, 1, open_end=True)),
    Key("WEIGHT_DECAY", 0.0005, "of weights", not_negative),
    Key("WEIGHT_DECAY_BIAS", 0.0, "of biases", not_negative),
    Key(
        "WEIGHT_DECAY_NORM",
        None,
        "of the scales of normalisation layers; left out: WEIGHT_DECAY",
        not_negative,
        float,
    ),
    Key("LR_SCHEDULE", "multistep", "after warm-up", one_of("multistep", "cosine")),
    Key(
        "STEPS",
        (30000,),
        "iterations, or below 1 shares of the run, at which the rate falls by GAMMA; shares under "
        "MAX_MINUTES",
        each(not_negative, empty=True),
    ),
    Key("GAMMA", 0.1, "factor of each fall", positive),
    Key("WARMUP_METHOD", "linear", "course of the warm-up", one_of("linear", "constant")),
    Key("WARMUP_FACTOR", 1.0 / 3, "rate at its start, relative", fraction),
    Key(
        "WARMUP_ITERS",
        500,
        "its length; under MAX_EPOCHS and MAX_MINUTES at most a tenth of the run",
        not_negative,
    ),
    Key("CLIP_GRAD_NORM", 0.0, "largest joint norm of the gradients; 0: no clipping", not_negative),
    Key(
        "MAX_SKIPPED_STEPS",
        0,
        "steps with a loss that is not finite that a run may leave out, at the price of reading "
        "the losses in every step; one more, or 0: the run ends",
        not_negative,
    ),
    Key(
        "EMA_DECAY",
        0.0,
        "decay of a moving average of the weights, such as 0.9998, evaluated and saved beside "
        "them; 0: none",
        in_range(0, 1, open_end=True),
    ),
    Key(
        "DETERMINISTIC",
        False,
        "only algorithms of torch that give the same bits in every run on the same machine",
    ),
    Key("LOG_PERIOD", 20, "iterations between lines of metrics", positive),
    Key(
        "CHECKPOINT_PERIOD", 2500, "iterations between checkpoints; 0: just the last", not_negative
    ),
    Key(
        "CHECKPOINTS_KEPT",
        0,
        "newest checkpoints that stay beside the final and the best one; 0: all",
        not_negative,
    ),
    Key(
        "TEST_PERIOD",
        0,
        "iterations between evaluations, each of a checkpoint; 0: only at the end",
        not_negative,
    ),
    Key(
        "BEST_METRIC",
        "",
        "the checkpoint with its highest value is kept as model_best.pth: bbox/AP of the first "
        "test set, my_val/bbox/AP, or, of the average of the weights, my_val average/bbox/AP; of a "
        "loss, such as loss/total, the lowest; empty: none",
    ),
    Key(
        "PATIENCE",
        0,
        "evaluations without a better BEST_METRIC after which the run ends; 0: never",
        not_negative,
    ),
    Key(
        "HOOKS",
        (),
        "names of registered hooks that the trainer calls around its steps (see IMPORTS)",
        strings,
    ),
)
