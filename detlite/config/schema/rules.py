"""Rules: which values of several config keys contradict each other, and what to do about it."""

from collections.abc import Iterator

from yacs.config import CfgNode

from detlite.errors import ConfigError


def check_rules(cfg: CfgNode) -> None:
    """Raise a ConfigError if values of several keys contradict each other."""
    for check in (_image_problems, _head_problems, _cascade_problems, _solver_problems):
        for problem in check(cfg):
            raise ConfigError(problem)


def _image_problems(cfg: CfgNode) -> Iterator[str]:
    means, deviations, values = cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD, cfg.INPUT.VALUE_RANGE
    if len(deviations) != len(means) or len(values) not in (0, 2, 2 * len(means)):
        yield (
            f"INPUT.PIXEL_MEAN is {means}, one value per channel: INPUT.PIXEL_STD ({deviations}) "
            f"needs as many values, and INPUT.VALUE_RANGE ({values}) one pair or as many pairs"
        )
    if cfg.MODEL.BACKBONE.CONV_BODY.startswith("timm/") and cfg.MODEL.RESNETS.NORM == "SyncBN":
        yield (
            "MODEL.RESNETS.NORM is SyncBN, which timm models do not have: set it to BN or FrozenBN"
        )


def _head_problems(cfg: CfgNode) -> Iterator[str]:
    model, kind = cfg.MODEL, cfg.MODEL.META_ARCHITECTURE
    heads = {f"MODEL.{key}": model[key] for key in ("MASK_ON", "KEYPOINT_ON", "LOAD_PROPOSALS")}
    heads["MODEL.ROI_BOX_HEAD.PASSES above 1"] = model.ROI_BOX_HEAD.PASSES > 1
    heads["features in TEST.EXTRA_OUTPUTS"] = "features" in cfg.TEST.EXTRA_OUTPUTS
    if kind in ("RetinaNet", "ProposalNetwork") and any(heads.values()):
        keys = " and ".join(key for key, value in heads.items() if value)
        yield f"{keys} need RoI heads, which a {kind} does not have: remove them from the config"
    if kind == "ProposalNetwork" and cfg.TEST.EXTRA_OUTPUTS:
        yield "TEST.EXTRA_OUTPUTS must be empty: a ProposalNetwork has no classes"


def _cascade_problems(cfg: CfgNode) -> Iterator[str]:
    model, heads, key = cfg.MODEL, cfg.MODEL.ROI_HEADS, "MODEL.ROI_HEADS.CASCADE_IOUS"
    ious, weights = heads.CASCADE_IOUS, heads.CASCADE_BBOX_REG_WEIGHTS
    passes = "ROI_BOX_HEAD.PASSES"
    stages = key if ious else f"MODEL.{passes} above 1" if model.ROI_BOX_HEAD.PASSES > 1 else ""
    for name, on in (("MASK", model.MASK_ON), ("KEYPOINT", model.KEYPOINT_ON)):
        # The features of a box head with several stages pass scaled gradients to the backbone.
        if stages and on and model[f"ROI_{name}_HEAD"].SHARE_BOX_FEATURE_EXTRACTOR:
            yield f"{stages} needs MODEL.ROI_{name}_HEAD.SHARE_BOX_FEATURE_EXTRACTOR False"
    if not ious:
        return
    if model.ROI_BOX_HEAD.PASSES > 1:
        yield f"MODEL.{passes} is for a single box head: set it to 1, or {key} ()"
    if len(weights) != len(ious):
        yield (
            f"{key} is {ious}, but CASCADE_BBOX_REG_WEIGHTS is {weights}: give the weights of each "
            "stage"
        )
    if ious[0] != heads.FG_IOU_THRESHOLD:
        yield (
            f"{key} starts with {ious[0]}, but MODEL.ROI_HEADS.FG_IOU_THRESHOLD is "
            f"{heads.FG_IOU_THRESHOLD}: both are the IoU of the first stage"
        )
    if not model.CLS_AGNOSTIC_BBOX_REG:
        yield f"{key} needs MODEL.CLS_AGNOSTIC_BBOX_REG True: stages share their boxes"


def _solver_problems(cfg: CfgNode) -> Iterator[str]:
    solver = cfg.SOLVER
    needs = {
        "LR_SCHEDULE": ("constant", solver.LR_SCHEDULE == "constant"),
        "MOMENTUM": ("above 0, such as 0.9", solver.MOMENTUM > 0),
        "EMA_DECAY": ("0, because it averages the weights itself", solver.EMA_DECAY == 0),
    }
    for key, (need, holds) in needs.items():
        if solver.OPTIMIZER == "ScheduleFreeAdamW" and not holds:
            name = f"SOLVER.{key}"
            yield f"{name} is {solver[key]}, but ScheduleFreeAdamW needs {name} {need}"
    if solver.PATIENCE and not solver.BEST_METRIC:
        yield (
            f"SOLVER.PATIENCE is {solver.PATIENCE}, but SOLVER.BEST_METRIC is empty: name a "
            "metric, such as bbox/AP"
        )
