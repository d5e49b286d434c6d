"""Batch size, number of steps and evaluations of a training."""

import math

import numpy as np

from .dataset_facts import DatasetFacts, Rules, Values, resize_factors

# Pixels per batch. Short trainings with many small steps reached higher AP than with few large
# steps of the same number of images (docs/training.md). On a CPU they also take no longer, but a
# GPU would be idle.
_BATCH_PIXELS = {"CPU": 3e5, "GPU": 4e6}
# EfficientNet-lite0-FPN took up to 2400 in bfloat16 (docs/formats.md); float32 takes twice that.
_BYTES_PER_PIXEL = 5000
# By (pretrained, device).
_EPOCHS = {(True, "CPU"): 6, (True, "GPU"): 12, (False, "CPU"): 12, (False, "GPU"): 36}
# Minimum number of steps, by `pretrained`. Batches below _MIN_STEPS_BATCH need more steps for the
# same number of images.
_MIN_STEPS = {True: 200, False: 400}
_MIN_STEPS_BATCH = 4
_EVALUATION_TIME, _MAX_EVALUATIONS = 0.1, 5  # of the training time; number
MIN_FRACTION = 0.5  # of the recommended steps that a short training should have


def images_with_objects(facts: DatasetFacts, values: Values) -> int:
    """Return the number of images that are used for training, also those without objects."""
    empty = facts.train.empty if values.get("DATASETS.BACKGROUND_IMAGES") else 0
    return int((facts.train.per_image > 0).sum()) + empty


def _train_images(facts: DatasetFacts, values: Values) -> int:
    """Return the number of images, or of tiles, that are used for training."""
    if not facts.train.tiles:
        return images_with_objects(facts, values)
    # Tiles without objects are trained, too.
    return facts.train.images if values.get("DATASETS.BACKGROUND_IMAGES") else facts.train.tiles


def input_pixels(facts: DatasetFacts, values: Values) -> float:
    """Return the median number of pixels of the largest network inputs in training."""
    max_short, max_long = max(values["INPUT.MIN_SIZE_TRAIN"]), values["INPUT.MAX_SIZE_TRAIN"]
    factors = resize_factors(facts.train, max_short, max_long)
    return float(np.median(facts.train.sizes.prod(axis=1) * factors**2))


def batch_size(facts: DatasetFacts, values: Values) -> tuple[int, str]:
    """Return the number of images per step, and the reason."""
    machine, processes = facts.machine, facts.processes
    if facts.single_images:
        return processes, "one image, because more steps gain more than larger ones in a short time"
    pixels = input_pixels(facts, values)
    # Processes share the memory of a machine, but each has its own GPU.
    memory = machine.gpu_memory if machine.gpu else machine.memory / processes
    fits = memory / 2 / (_BYTES_PER_PIXEL * pixels) if memory else 16.0
    useful = _BATCH_PIXELS[facts.device] / pixels
    size = processes * 2 ** max(round(math.log2(min(max(min(useful, fits), 1), 16))), 0)
    if size > (count := _train_images(facts, values)):
        return max(count // processes, 1) * processes, f"there are {count} training images"
    reason = f"an image has {pixels / 1e6:.2f} million pixels, and "
    if fits < max(useful, 1):
        reason += f"half of the memory ({memory / 1e9:.0f} GB) is enough for {fits:.0f}"
    else:
        best = f"{_BATCH_PIXELS[facts.device] / 1e6:g} million"
        reason += f"about {best} per step are best on a {facts.device}"
    return size, reason + f"; for each of {processes} processes" * (processes > 1)


def recommended_steps(facts: DatasetFacts, values: Values) -> tuple[int, str]:
    """Return the number of steps that training should have, and why."""
    count, pretrained = _train_images(facts, values), bool(values.get("MODEL.WEIGHT"))
    size, unit = values["SOLVER.IMS_PER_BATCH"], "tiles" if facts.train.tiles else "images"
    steps, min_steps = steps_for_images(count, size, pretrained, facts.device)
    epochs, weights = _EPOCHS[pretrained, facts.device], "pretrained" if pretrained else "random"
    reason = f"{epochs} epochs of {count} {unit} from {weights} weights on a {facts.device}"
    if steps * size > 1.2 * epochs * count:
        epochs = round(steps * size / count)
        reason = f"at least {min_steps} steps, which are {epochs} epochs of {count} {unit}"
    return steps, f"{reason}; more steps improve the model further"


def steps_for_images(count: int, size: int, pretrained: bool, device: str) -> tuple[int, int]:
    """Return the number of steps for `count` images in batches of `size`, and its minimum.

    `device` is "CPU" or "GPU".
    """
    min_steps = math.ceil(_MIN_STEPS[pretrained] * max(_MIN_STEPS_BATCH / size, 1))
    steps = max(math.ceil(_EPOCHS[pretrained, device] * count / size), min_steps)
    return math.ceil(steps / 10) * 10, min_steps


def length(facts: DatasetFacts, values: Values) -> Rules:
    """Choose the length of the run, its warm-up, evaluations and checkpoints."""
    recommended, reason = recommended_steps(facts, values)
    epochs, steps, batch = (
        values.get(f"SOLVER.{key}") for key in ("MAX_EPOCHS", "MAX_ITER", "IMS_PER_BATCH")
    )
    by_minutes = not (epochs or steps) and bool(values.get("SOLVER.MAX_MINUTES"))
    if epochs:
        steps = math.ceil(epochs * _train_images(facts, values) / batch)
    elif facts.minutes and facts.step_seconds and not steps:
        by_minutes, (minutes, timed) = True, facts.minutes
        steps = max(int(minutes * 60 / facts.step_seconds), 1)
        yield ("SOLVER.MAX_MINUTES", minutes,
               f"as requested: about {steps} steps of {facts.step_seconds:.2g} seconds, including "
               f"loading, of {recommended} recommended ones ({reason}). {timed}")  # fmt: skip
    elif not steps and not by_minutes:
        steps = recommended
        yield "SOLVER.MAX_ITER", steps, reason
    count = 0
    if steps:
        warmup = min(100, max(steps // 10, int(by_minutes)))
        yield "SOLVER.WARMUP_ITERS", warmup, "a tenth of all steps, at most 100"
    if steps and facts.val:
        # Inference takes about a third of the time of training on an image.
        fraction = facts.val.images / (3 * steps * batch)
        count = min(int(_EVALUATION_TIME / fraction), _MAX_EVALUATIONS)
        images = f"{facts.val.images} images take about"
        if count < 2:
            reason = f"evaluate only at the end: {images} {fraction:.0%} of the training time"
            yield "SOLVER.TEST_PERIOD", 0, reason
        else:
            yield ("SOLVER.TEST_PERIOD", math.ceil(steps / count),
                   f"{count} evaluations of {images} {count * fraction:.0%} of the training time; "
                   "an interrupted run continues from the last one")  # fmt: skip
        metric = "segm/AP" if values["MODEL.MASK_ON"] else "bbox/AP"
        yield "SOLVER.BEST_METRIC", metric, "decides which evaluated model is model_best.pth"
    if count < 2:
        reason = "a fifth of all steps, to continue interrupted runs"
        yield "SOLVER.CHECKPOINT_PERIOD", math.ceil((steps or recommended) / 5), reason
    yield "SOLVER.CHECKPOINTS_KEPT", 1, ""
