"""Evaluators: choose and run the metrics of a data set."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.data import CocoDataset
from detlite.registry import Registry

from .cityscapes import check_void, evaluate_cityscapes
from .coco import evaluate_coco
from .lvis import check_lvis, evaluate_lvis
from .metrics import Metrics
from .proposals import evaluate_proposals
from .results import Results
from .voc import evaluate_voc


class Evaluator(ABC):
    """Base class of evaluators. Register a subclass with `@EVALUATORS.register(name)`."""

    def check(self, cfg: CfgNode, dataset: CocoDataset) -> None:  # noqa: B027 (optional)
        """Check before training and inference that `evaluate` will be possible.

        Raises:
            ConfigError, DataError: the model or the ground truth lacks what is needed.
        """

    @abstractmethod
    def evaluate(self, cfg: CfgNode, dataset: CocoDataset, results: Results) -> Metrics:
        """Compute the metrics of the detections in all images of `dataset`.

        Args:
            cfg: of the run.
            dataset: `dataset.coco_gt()` is its ground truth.
            results: may be empty.

        Returns:
            {kind: {metric: value}}, such as {"bbox": {"AP": 0.4}}, as fractions; None if the
            ground truth has no such objects.
        """


EVALUATORS: Registry[type[Evaluator]] = Registry("evaluator")


def predicted_kinds(cfg: CfgNode) -> tuple[str, ...]:
    """Return what the model predicts: "box_proposal", or "bbox" with "segm" and "keypoints"."""
    if cfg.MODEL.META_ARCHITECTURE == "ProposalNetwork":
        return ("box_proposal",)
    heads = {"segm": cfg.MODEL.MASK_ON, "keypoints": cfg.MODEL.KEYPOINT_ON}
    return ("bbox", *(kind for kind, on in heads.items() if on))


def _default_evaluators(dataset_type: str, predicted: Sequence[str]) -> tuple[str, ...]:
    """Return the evaluators of a data set without `evaluators` in its catalog entry."""
    if "box_proposal" in predicted:
        return ("proposals",)
    if dataset_type == "lvis":
        return ("lvis",)
    if dataset_type == "voc":
        return ("coco", "voc")
    if dataset_type == "cityscapes" and "segm" in predicted:
        return ("coco", "cityscapes")
    return ("coco",)


def build_evaluators(cfg: CfgNode, dataset: CocoDataset) -> dict[str, Evaluator]:
    """Build the evaluators of a data set, by name.

    They are listed as `evaluators` in its entry of DATASETS.CATALOG. The default depends on the
    type of the data set and on what the model predicts.
    """
    names: Any = _default_evaluators(dataset.kind, predicted_kinds(cfg))
    where = f"DATASETS.CATALOG, {dataset.name}, evaluators"
    for entry in cfg.DATASETS.CATALOG:
        if entry["name"] == dataset.name and "evaluators" in entry:
            names = entry["evaluators"]
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ConfigError(f"{where} is {names!r}, but must be a list of names")
    return {name: EVALUATORS.get(name, where)() for name in names}


def _require(cfg: CfgNode, evaluator: str, kind: str) -> None:
    if kind not in (predicted := predicted_kinds(cfg)):
        raise ConfigError(
            f"the evaluator {evaluator!r} needs {kind!r}, but the model predicts "
            f"{', '.join(map(repr, predicted))} only"
        )


@EVALUATORS.register("coco")
class CocoEvaluator(Evaluator):
    """COCO AP of boxes, masks and keypoints: "bbox", "segm", "keypoints"."""

    def check(self, cfg: CfgNode, dataset: CocoDataset) -> None:
        _require(cfg, "coco", "bbox")
        sigmas, points = len(cfg.TEST.KEYPOINT_OKS_SIGMAS), len(dataset.keypoint_names)
        if points and sigmas not in (0, points):
            raise ConfigError(
                f"TEST.KEYPOINT_OKS_SIGMAS has {sigmas} values, but {dataset.annotation_file} has "
                f"{points} keypoints"
            )

    def evaluate(self, cfg: CfgNode, dataset: CocoDataset, results: Results) -> Metrics:
        return evaluate_coco(
            dataset.coco_gt(),
            results,
            predicted_kinds(cfg),
            cfg.MODEL.ROI_HEADS.DETECTIONS_PER_IMG,
            cfg.TEST.KEYPOINT_OKS_SIGMAS,
        )


@EVALUATORS.register("lvis")
class LvisEvaluator(Evaluator):
    """LVIS AP of boxes and masks: "bbox", "segm"."""

    def check(self, cfg: CfgNode, dataset: CocoDataset) -> None:
        _require(cfg, "lvis", "bbox")
        check_lvis(dataset.coco_gt(annotations=False))

    def evaluate(self, cfg: CfgNode, dataset: CocoDataset, results: Results) -> Metrics:
        kinds = [kind for kind in predicted_kinds(cfg) if kind != "keypoints"]
        return evaluate_lvis(dataset.coco_gt(), results, kinds)


@EVALUATORS.register("voc")
class VocEvaluator(Evaluator):
    """PASCAL VOC AP of boxes: "voc"."""

    def check(self, cfg: CfgNode, dataset: CocoDataset) -> None:
        _require(cfg, "voc", "bbox")

    def evaluate(self, cfg: CfgNode, dataset: CocoDataset, results: Results) -> Metrics:
        return {"voc": evaluate_voc(dataset.coco_gt(), results)}


@EVALUATORS.register("cityscapes")
class CityscapesEvaluator(Evaluator):
    """Cityscapes AP of masks: "cityscapes"."""

    def check(self, cfg: CfgNode, dataset: CocoDataset) -> None:
        _require(cfg, "cityscapes", "segm")
        check_void(dataset.coco_gt(annotations=False))

    def evaluate(self, cfg: CfgNode, dataset: CocoDataset, results: Results) -> Metrics:
        return {"cityscapes": evaluate_cityscapes(dataset.coco_gt(), results)}


@EVALUATORS.register("proposals")
class ProposalEvaluator(Evaluator):
    """Average recall of class-agnostic boxes: "box_proposal"."""

    def evaluate(self, cfg: CfgNode, dataset: CocoDataset, results: Results) -> Metrics:
        return {"box_proposal": evaluate_proposals(dataset.coco_gt(), results)}
