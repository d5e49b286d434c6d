"""Rules for training: precision, batch size, learning rate, schedule, data loading."""

import math
from collections.abc import Iterator

import numpy as np

from .dataset_facts import Choice, DatasetFacts, Values, resize_factors

# Pixels per batch. Short trainings with many small steps reached higher AP than with few large
# steps of the same number of images (docs/recipes.md). On a CPU they also take no longer, but a GPU
# would be idle.
_BATCH_PIXELS = {"cpu": 3e5, "gpu": 4e6}
# EfficientNet-lite0-FPN took up to 2400 in bfloat16 (docs/init.md); float32 takes twice that.
_BYTES_PER_PIXEL = 5000
# By (pretrained, device).
_EPOCHS = {(True, "cpu"): 6, (True, "gpu"): 12, (False, "cpu"): 12, (False, "gpu"): 36}
# Minimum number of steps, by `pretrained`. Batches below _MIN_STEPS_BATCH need more steps for the
# same number of images.
_MIN_STEPS = {True: 200, False: 400}
_MIN_STEPS_BATCH = 4
_LOADING_FRACTION = 0.1  # of a step, above which a process loads images
# Images of categories in fewer images are repeated. For LVIS, the limit is 0.001 of its 57,000
# images (Gupta et al., 2019). With 135 images, a limit of half of them (67) was best
# (docs/recipes.md).
_COMMON_IMAGES, _COMMON_FRACTION = 60, 0.5


def _train_images(facts: DatasetFacts, values: Values) -> int:
    """Return the number of images, or of tiles, that are used for training."""
    if facts.train.tiles:  # those without objects are trained, too
        all_tiles = len(facts.train.sizes)
        return all_tiles if values.get("DATASETS.BACKGROUND_IMAGES") else facts.train.tiles
    return _with_objects(facts, values)


def _with_objects(facts: DatasetFacts, values: Values) -> int:
    empty = facts.train.empty if values.get("DATASETS.BACKGROUND_IMAGES") else 0
    return int((facts.train.per_image > 0).sum()) + empty


def precision(facts: DatasetFacts, _: Values) -> Iterator[Choice]:
    device = facts.machine.gpu or "the CPU"
    yield Choice("DTYPE", "auto", f"{facts.machine.dtype} on {device} of this machine")


def batch_size(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    train, machine, device = facts.train, facts.machine, facts.device
    max_short, max_long = max(values["INPUT.MIN_SIZE_TRAIN"]), values["INPUT.MAX_SIZE_TRAIN"]
    sizes = train.sizes * resize_factors(train, max_short, max_long)[:, None]
    pixels = float(np.median(sizes.prod(axis=1)))
    # Processes share the memory of a machine, but each has its own GPU.
    memory = machine.gpu_memory if machine.gpu else machine.memory / facts.processes
    fits = memory / 2 / (_BYTES_PER_PIXEL * pixels) if memory else 16.0
    useful = _BATCH_PIXELS[device] / pixels
    size = facts.processes * 2 ** max(round(math.log2(min(max(min(useful, fits), 1), 16))), 0)
    image = f"an image has {pixels / 1e6:.2f} million pixels"
    step = f"about {_BATCH_PIXELS[device] / 1e6:g} million per step are best on a {device.upper()}"
    reason = f"{image}, and {step}"
    if useful < 1:
        reason = f"one image is the minimum: {image}, while {step}"
    if fits < max(useful, 1):
        reason = (
            f"half of the memory ({memory / 1e9:.0f} GB) is enough for {fits:.0f} images of "
            f"{pixels / 1e6:.2f} million pixels"
        )
    if facts.processes > 1:
        reason += f"; for each of {facts.processes} processes"
    count = _train_images(facts, values)
    if size > count:
        size = max(count // facts.processes, 1) * facts.processes
        reason = f"there are {count} training images"
    yield Choice("SOLVER.IMS_PER_BATCH", size, reason)


def optimizer(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    choices = {"SOLVER.OPTIMIZER": "ScheduleFreeAdamW", "SOLVER.LR_SCHEDULE": "constant"}
    as_chosen = all(values.get(key, choice) == choice for key, choice in choices.items())
    if not facts.machine.schedule_free or _has_trained_heads(values) or not as_chosen:
        return  # AdamW and a cosine schedule
    reasons = (
        "averages the weights instead of lowering the learning rate: half a point more AP in the "
        "same time on all measured datasets",
        "as this optimizer requires; set cosine for any other",
    )
    for (key, choice), reason in zip(choices.items(), reasons, strict=True):
        yield Choice(key, choice, reason)


def _has_trained_heads(values: Values) -> bool:
    weight = values.get("MODEL.WEIGHT", "")
    return bool(weight) and not weight.startswith(("package://", "timm://"))  # backbone weights


def learning_rate(_: DatasetFacts, values: Values) -> Iterator[Choice]:
    value = 0.0005 * math.sqrt(values["SOLVER.IMS_PER_BATCH"] / 4)
    reason = "for AdamW and a trained detector: 0.0005 * sqrt(batch size / 4)"
    if not _has_trained_heads(values):
        value = max(value, min(2 * value, 0.001))
        reason = (
            "for AdamW: 0.001 for batches of 4 to 16, 0.001 * sqrt(batch size / 4) for smaller and "
            "0.001 * sqrt(batch size / 16) for larger ones"
        )
    yield Choice("SOLVER.BASE_LR", float(f"{value:.2g}"), reason)


def recommended_steps(facts: DatasetFacts, values: Values) -> tuple[int, str]:
    """Return the number of steps that training should have, and why."""
    count, pretrained = _train_images(facts, values), bool(values.get("MODEL.WEIGHT"))
    size, unit = values["SOLVER.IMS_PER_BATCH"], "tiles" if facts.train.tiles else "images"
    return steps_for_images(count, size, pretrained, facts.device, unit)


def steps_for_images(
    count: int, size: int, pretrained: bool, device: str, unit: str = "images"
) -> tuple[int, str]:
    """Return the number of steps for `count` images in batches of `size`, and why."""
    epochs = _EPOCHS[pretrained, device]
    weights = "pretrained" if pretrained else "random"
    min_steps = math.ceil(_MIN_STEPS[pretrained] * max(_MIN_STEPS_BATCH / size, 1))
    steps = max(math.ceil(epochs * count / size), min_steps)
    steps = math.ceil(steps / 10) * 10
    reason = f"{epochs} epochs of {count} {unit} from {weights} weights on a {device.upper()}"
    if steps * size > 1.2 * epochs * count:
        epochs = round(steps * size / count)
        reason = f"at least {min_steps} steps, which are {epochs} epochs of {count} {unit}"
    return steps, reason


def _fixed_steps(facts: DatasetFacts, values: Values) -> int | None:
    """Return the number of steps if it is already decided."""
    if epochs := values.get("SOLVER.MAX_EPOCHS"):
        return math.ceil(epochs * _train_images(facts, values) / values["SOLVER.IMS_PER_BATCH"])
    steps: int | None = values.get("SOLVER.MAX_ITER")
    return steps


def schedule(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    size = values["SOLVER.IMS_PER_BATCH"]
    steps, reason = recommended_steps(facts, values)
    warmup = "a tenth of all steps, at most 100"
    if fixed := _fixed_steps(facts, values):
        steps = fixed
        yield Choice("SOLVER.WARMUP_ITERS", min(100, steps // 10), warmup)
    elif facts.minutes and facts.step_seconds:
        minutes, timed = facts.minutes
        recommended, steps = steps, max(int(minutes * 60 / facts.step_seconds), 1)
        yield Choice(
            "SOLVER.MAX_MINUTES",
            minutes,
            f"as requested: about {steps} steps of {facts.step_seconds:.2g} seconds, including "
            f"loading, of {recommended} recommended ones ({reason}). {timed}",
        )
        yield Choice("SOLVER.WARMUP_ITERS", min(100, max(steps // 10, 1)), warmup)
    elif values.get("SOLVER.MAX_MINUTES"):
        # The number of steps is unknown, so evaluations cannot be planned.
        yield from _checkpoints(
            math.ceil(steps / 5), f"a fifth of the recommended number of steps ({steps})"
        )
        return
    else:
        yield Choice("SOLVER.MAX_ITER", steps, f"{reason}; more steps improve the model further")
        yield Choice("SOLVER.WARMUP_ITERS", min(100, steps // 10), warmup)
    fifth = math.ceil(steps / 5)
    if facts.val is None:
        yield from _checkpoints(fifth, "a fifth of all steps")
        return
    images = len(facts.val.sizes)
    # Inference takes about a third of the time of training on an image.
    fraction = images / (3 * steps * size)
    count = int(min(0.1 / fraction, 5))
    metric = "segm/AP" if values["MODEL.MASK_ON"] else "bbox/AP"
    if count < 2:
        reason = (
            f"evaluate only at the end: {images} images take about {fraction:.0%} of the training "
            "time"
        )
        yield Choice("SOLVER.TEST_PERIOD", 0, reason)
        yield Choice("SOLVER.BEST_METRIC", metric, "model_best.pth is then the final model")
        yield from _checkpoints(fifth, "a fifth of all steps")
        return
    reason = (
        f"{count} evaluations of {images} images take about {count * fraction:.0%} of the training "
        "time; an interrupted run continues from the last one"
    )
    yield Choice("SOLVER.TEST_PERIOD", math.ceil(steps / count), reason)
    yield Choice("SOLVER.BEST_METRIC", metric, "the best model is kept as model_best.pth")
    yield Choice("SOLVER.CHECKPOINTS_KEPT", 1)


def _checkpoints(period: int, reason: str) -> Iterator[Choice]:
    reason += "; an interrupted run continues from the last checkpoint"
    yield Choice("SOLVER.CHECKPOINT_PERIOD", period, reason)
    yield Choice("SOLVER.CHECKPOINTS_KEPT", 1)


def rare_categories(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    categories, count = facts.train.categories, _with_objects(facts, values)
    name, _, images = min((row for row in categories if row[2]), key=lambda row: row[2])
    common = min(_COMMON_IMAGES, _COMMON_FRACTION * count)
    if len(categories) > 1 and images < common:
        yield Choice(
            "DATALOADER.REPEAT_THRESHOLD",
            float(f"{common / count:.2g}"),
            f"{name} is in {images} of {count} images: images of categories in fewer than "
            f"{math.ceil(common)} are repeated",
        )


def workers(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    machine = facts.machine
    loading = facts.train.decoding * values["SOLVER.IMS_PER_BATCH"]
    decoding = f"reading an image takes {1000 * facts.train.decoding:.0f} ms"
    step = facts.step_seconds or math.inf
    if not machine.gpu and machine.cores > 1 and loading > _LOADING_FRACTION * step:
        reason = f"{decoding}, {loading / step:.0%} of a step for its batch"
        yield Choice("DATALOADER.NUM_WORKERS", 1, reason)
        return
    if not machine.gpu:
        cores = "the only core" if machine.cores == 1 else f"all {machine.cores} cores"
        yield Choice("DATALOADER.NUM_WORKERS", 0, f"the model uses {cores}, and {decoding}")
        return
    count = max(min(machine.cores - 1, 8), 0)
    cores = "the only core" if machine.cores == 1 else f"one of {machine.cores} cores"
    yield Choice("DATALOADER.NUM_WORKERS", count, f"{decoding}; {cores} drives the GPU")
