"""Options of a dataset."""

from dataclasses import dataclass

from yacs.config import CfgNode

from detlite.conventions import convention_of
from detlite.data.annotations.selection import Selection
from detlite.data.images.pixels import DEFAULT_OPTIONS, ImageOptions, build_image_options

GIGABYTE = 1 << 30
_NOT_TRAINED = (
    "They are not trained on. If they contain no objects, set DATASETS.BACKGROUND_IMAGES True."
)
_ALL_WRONG = (
    "They are evaluated as images without objects: every detection there is wrong. If they are not "
    "labeled yet, set TEST.UNLABELED_IMAGES skip."
)
_NOT_EVALUATED = "They are not evaluated, as set by TEST.UNLABELED_IMAGES."


@dataclass(frozen=True)
class DatasetOptions:
    """Selects the entries of a dataset, and says how its images and targets are read.

    Attributes:
        train: skip images without a usable annotation.
        masks: require a segmentation of every annotation. Only training targets have masks.
        masks_as_rle: draw polygons at the size of the image file, as torchvision does.
        keypoints: require keypoints of every annotation, and their names in a category.
        min_keypoints: in training, skip images with fewer labeled keypoints.
        background: in training, keep images without any annotation as negative examples.
        skip_unlabeled: in evaluation, skip images without any annotation.
        skip_bad: skip bad annotations and images instead of raising an error.
        crowds_as_objects: see DATASETS.CROWDS_AS_OBJECTS.
        min_area: ignore objects with fewer pixels, see INPUT.MIN_AREA.
        check_images: check all image files; otherwise a bad one fails when it is read.
        fields: names of the `OBJECT_FIELDS` of targets.
        images: how image files are read.
        cache_bytes: limit of the cache of large images at a reduced size; 0: no cache.
    """

    train: bool = False
    masks: bool = True
    masks_as_rle: bool = False
    keypoints: bool = False
    min_keypoints: int = 0
    background: bool = False
    skip_unlabeled: bool = False
    skip_bad: bool = False
    crowds_as_objects: bool = False
    min_area: float = 0
    check_images: bool = True
    fields: tuple[str, ...] = ()
    images: ImageOptions = DEFAULT_OPTIONS
    cache_bytes: int = 0

    @property
    def selection(self) -> Selection:
        """The annotations that are used."""
        return Selection(self.masks, self.keypoints, self.crowds_as_objects)

    @property
    def empty_effect(self) -> str:
        """Describe how images without annotations are used; "" if they are trained on."""
        if self.train:
            return "" if self.background else _NOT_TRAINED
        return _NOT_EVALUATED if self.skip_unlabeled else _ALL_WRONG


DEFAULTS = DatasetOptions()


def build_dataset_options(cfg: CfgNode, train: bool) -> DatasetOptions:
    """Build the options of a dataset for training or evaluation."""
    datasets, model = cfg.DATASETS, cfg.MODEL
    return DatasetOptions(
        train=train,
        masks=model.MASK_ON,
        masks_as_rle=convention_of(cfg).mask_targets == "soft",
        keypoints=model.KEYPOINT_ON,
        min_keypoints=datasets.MIN_KEYPOINTS_PER_IMAGE if model.KEYPOINT_ON else 0,
        background=datasets.BACKGROUND_IMAGES,
        skip_unlabeled=cfg.TEST.UNLABELED_IMAGES == "skip",
        skip_bad=datasets.ON_BAD_ANNOTATION == "skip",
        crowds_as_objects=datasets.CROWDS_AS_OBJECTS,
        min_area=cfg.INPUT.MIN_AREA,
        check_images=datasets.CHECK_IMAGES,
        images=build_image_options(cfg),
        cache_bytes=int(datasets.CACHE_GB * GIGABYTE),
    )
