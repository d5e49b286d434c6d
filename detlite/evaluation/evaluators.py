"""Evaluators: choose and run the metrics of a dataset."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.data import CocoDataset
from detlite.data.datasets.catalog import listed_names
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.data.transforms.tiles import tile_windows
from detlite.registry import Registry

from .coco import measure_coco
from .metrics import Metrics, iou_problem
from .results import Results


class Evaluator(ABC):
    """Base class of evaluators. Register a subclass with `@EVALUATORS.register(name)`."""

    kind = ""  # what the model must predict, such as "segm"; empty: any

    def check(self, cfg: CfgNode, dataset: CocoDataset) -> None:  # noqa: B027 (optional)
        """Check, before training and inference, that `evaluate` can be called.

        Raises:
            ConfigError, DataError: the model or the ground truth lacks what is needed.
        """

    @abstractmethod
    def evaluate(self, cfg: CfgNode, dataset: CocoDataset, results: Results) -> Metrics:
        """Compute the metrics of the detections, which may be none, in all images of `dataset`.

        Returns:
            {kind: {metric: value}}, such as {"bbox": {"AP": 0.4}}; None if the ground truth,
            `build_coco_gt(dataset)`, has no such objects. A value that is not a fraction, or
            better when it is lower, is a `MetricValue`.
        """


EVALUATORS: Registry[type[Evaluator]] = Registry(
    "evaluator",
    on_demand={
        "lvis": "detlite.evaluation.lvis",
        "voc": "detlite.evaluation.voc",
        "cityscapes": "detlite.evaluation.cityscapes",
        "proposals": "detlite.evaluation.proposals",
    },
)
# Evaluators of datasets without `evaluators` in their catalog entry; COCO's for other types.
_BY_DATASET_TYPE = {
    "lvis": ("lvis",),
    "voc": ("coco", "voc"),
    "cityscapes": ("coco", "cityscapes"),
}


def predicted_kinds(cfg: CfgNode) -> tuple[str, ...]:
    """Return what the model predicts: "box_proposal", or "bbox" with "segm" and "keypoints"."""
    if cfg.MODEL.META_ARCHITECTURE == "ProposalNetwork":
        return ("box_proposal",)
    heads = {"segm": cfg.MODEL.MASK_ON, "keypoints": cfg.MODEL.KEYPOINT_ON}
    return ("bbox", *(kind for kind, on in heads.items() if on))


def build_evaluators(cfg: CfgNode, dataset: CocoDataset) -> dict[str, Evaluator]:
    """Build the evaluators of a dataset, by name.

    They are listed as `evaluators` in its entry of DATASETS.CATALOG. The default depends on the
    type of the dataset and on what the model predicts.
    """
    predicted = predicted_kinds(cfg)
    by_type = _BY_DATASET_TYPE.get(dataset.kind, ("coco",))
    names: Sequence[str] = [name for name in by_type if EVALUATORS.get(name).kind in predicted]
    if "box_proposal" in predicted:
        names = ["proposals"]
    names = listed_names(cfg, dataset.name, "evaluators", names)
    where = f"DATASETS.CATALOG, {dataset.name}, evaluators"
    evaluators = {name: EVALUATORS.get(name, where)() for name in names}
    for name, evaluator in evaluators.items():
        if evaluator.kind not in ("", *predicted):
            raise ConfigError(
                f"the evaluator {name!r} needs {evaluator.kind!r}, but the model predicts "
                f"{', '.join(map(repr, predicted))} only"
            )
    return evaluators


@EVALUATORS.register("coco")
class CocoEvaluator(Evaluator):
    """COCO AP of boxes, masks and keypoints: "bbox", "segm", "keypoints"."""

    kind = "bbox"

    def check(self, cfg: CfgNode, dataset: CocoDataset) -> None:
        coco_settings(cfg, dataset)

    def evaluate(self, cfg: CfgNode, dataset: CocoDataset, results: Results) -> Metrics:
        settings = coco_settings(cfg, dataset)
        return measure_coco(build_coco_gt(dataset), results, predicted_kinds(cfg), *settings)


def coco_settings(
    cfg: CfgNode, dataset: CocoDataset
) -> tuple[int, Sequence[float], Sequence[float]]:
    """Return the maximum number of detections, OKS sigmas and IoU thresholds.

    ConfigError if one is invalid.
    """
    points = len(dataset.keypoint_names)
    sigmas, ious = cfg.TEST.KEYPOINT_OKS_SIGMAS, cfg.TEST.IOU_THRESHOLDS
    if points and len(sigmas) not in (0, points):
        raise ConfigError(
            f"there are {len(sigmas)} OKS sigmas, but {dataset.annotation_file} has {points} "
            "keypoints"
        )
    if problem := iou_problem(ious):
        raise ConfigError(problem)
    return max_detections(cfg, dataset), sigmas, ious


def max_detections(cfg: CfgNode, dataset: CocoDataset) -> int:
    """Return the maximum number of detections per image.

    With TEST.TILE, DETECTIONS_PER_IMG applies to each tile and to the whole image, so the result is
    the sum of these limits for the image with the most tiles.
    """
    limit: int = cfg.MODEL.ROI_HEADS.DETECTIONS_PER_IMG
    if not cfg.TEST.TILE:
        return limit
    side = cfg.TEST.TILE
    tiles = max((len(tile_windows(size, side)) for size in set(dataset.sizes)), default=1)
    return limit * (tiles + 1) if tiles > 1 else limit  # an image of one tile is not cut
