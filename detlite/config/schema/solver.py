"""Keys of the optimizer, the schedule, and the periods of logs, checkpoints and evaluations."""

from detlite.config.checks import (
    above_up_to_one,
    below_one,
    each,
    fraction,
    not_negative,
    one_of,
    positive,
    run_length,
    strings,
)

from .key import Key, section

KEYS = section(
    "SOLVER",
    Key("OPTIMIZER", "SGD", "FusedSGD needs NVIDIA's apex", one_of("SGD", "FusedSGD", "AdamW")),
    Key(
        "MAX_ITER",
        40000,
        "run length in iterations; MAX_EPOCHS or MAX_MINUTES replaces it",
        run_length,
        int,
    ),
    Key("MAX_EPOCHS", None, "run length in epochs", run_length, float),
    Key("MAX_MINUTES", None, "run length in minutes, which LR_SCHEDULE follows", run_length, float),
    Key(
        "MINUTES_INCLUDE_TEST",
        False,
        "count evaluations in MAX_MINUTES: the longest one so far is reserved for the end. Without "
        "TEST_PERIOD, one evaluation at half time measures it",
    ),
    Key("IMS_PER_BATCH", 16, "batch size over all processes", positive),
    Key("ACCUMULATION_STEPS", 1, "gradient accumulation: the number of parts of a batch", positive),
    Key("BASE_LR", 0.001, "learning rate after warm-up", positive),
    Key("AUTO_SCALE_LR", False, "multiply BASE_LR by IMS_PER_BATCH / REFERENCE_IMS_PER_BATCH"),
    Key("REFERENCE_IMS_PER_BATCH", 16, "the batch size for which BASE_LR is meant", positive),
    Key("BIAS_LR_FACTOR", 2.0, "factor of the learning rate of biases", not_negative),
    Key("BACKBONE_LR_FACTOR", 1.0, "factor of the learning rate of the backbone", positive),
    Key(
        "LAYER_DECAY",
        1.0,
        "layer-wise decay: factor of the learning rate from each backbone layer to the previous "
        "one. Layers are the stages of ResNets, timm's convolutional models and Swin, and the "
        "blocks of a plain transformer",
        above_up_to_one,
    ),
    Key(
        "BACKBONE_FREEZE_ITERS",
        0,
        "iterations at the start with a completely frozen backbone; afterwards only the stages of "
        "MODEL.BACKBONE.FREEZE_CONV_BODY_AT stay frozen",
        not_negative,
    ),
    Key("MOMENTUM", 0.9, "momentum of SGD, or the first beta of AdamW", below_one),
    Key("WEIGHT_DECAY", 0.0005, "weight decay of weights", not_negative),
    Key("WEIGHT_DECAY_BIAS", 0.0, "weight decay of biases", not_negative),
    Key(
        "WEIGHT_DECAY_NORM", None, "weight decay of norms; unset: WEIGHT_DECAY", not_negative, float
    ),
    Key("LR_SCHEDULE", "multistep", "schedule after warm-up", one_of("multistep", "cosine")),
    Key(
        "STEPS",
        (30000,),
        "for multistep: iterations, or fractions of the run if below 1, at which the learning rate "
        "is multiplied by GAMMA; fractions with MAX_MINUTES",
        each(not_negative, empty=True),
    ),
    Key("GAMMA", 0.1, "for multistep: factor of the learning rate at each step", positive),
    Key("WARMUP_METHOD", "linear", "warm-up schedule", one_of("linear", "constant")),
    Key("WARMUP_FACTOR", 1.0 / 3, "factor of the learning rate at the start of warm-up", fraction),
    Key(
        "WARMUP_ITERS",
        500,
        "length of warm-up in iterations; with MAX_EPOCHS or MAX_MINUTES at most 10 % of the run",
        not_negative,
    ),
    Key("CLIP_GRAD_NORM", 0.0, "clip gradients to this total norm; 0: no clipping", not_negative),
    Key(
        "MAX_SKIPPED_STEPS",
        0,
        "iterations with a NaN or infinite loss that a run may skip before it stops. Above 0, the "
        "losses are read in every iteration, which costs a synchronization with a GPU",
        not_negative,
    ),
    Key(
        "EMA_DECAY",
        0.0,
        "decay of an exponential moving average of the weights, such as 0.9998, which is evaluated "
        "and saved together with them; 0: none",
        below_one,
    ),
    Key("DETERMINISTIC", False, "use deterministic algorithms, so that runs are reproducible"),
    Key("LOG_PERIOD", 20, "iterations between log lines", positive),
    Key("CHECKPOINT_PERIOD", 2500, "iterations between checkpoints; 0: final only", not_negative),
    Key(
        "CHECKPOINTS_KEPT", 0, "newest checkpoints kept, with final and best; 0: all", not_negative
    ),
    Key("TEST_PERIOD", 0, "iterations between evaluations; 0: only at the end", not_negative),
    Key(
        "BEST_METRIC",
        "",
        "metric whose best checkpoint is kept as model_best.pth: bbox/AP (first test set), "
        "my_val/bbox/AP, my_val average/bbox/AP (averaged weights), or a loss such as loss/total, "
        "for which lower is better; empty: none",
    ),
    Key("PATIENCE", 0, "early stopping: evaluations without a new best; 0: never", not_negative),
    Key("HOOKS", (), "names of registered trainer hooks, see IMPORTS", strings),
)
