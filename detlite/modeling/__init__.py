"""Models, and the parts that an own model is made of. Start reading at `rcnn.py`.

The names below are public: docs/write_a_detector.md uses them, and docs/api.md describes them. An
own part is registered in one of the registries, whose names are in capitals.
"""

from detlite.structures.padding import RowPacking, first_valid, gather, top_scores

from .backbone import BACKBONES, BODIES, NECKS, Backbone, build_backbone
from .backbone.fpn import FPN
from .boxes.box_coder import BoxCoder
from .boxes.losses import BOX_LOSSES, BoxLoss, build_box_loss, generalized_iou
from .boxes.matcher import BACKGROUND, IGNORE, Matcher
from .boxes.sampler import SAMPLERS, ProposalSampler, Sampler, build_proposal_sampler
from .boxes.suppression import Suppression
from .build import META_ARCHITECTURES, build_model
from .detection_model import DetectionModel
from .layers.conv_block import conv_block, init_he, init_normal, init_xavier
from .layers.norm import build_norm
from .postprocessing import Postprocess, build_postprocess, build_suppression
from .preprocessing import Normalizer, build_normalizer
from .proposal_network import ProposalNetwork
from .rcnn import GeneralizedRCNN, build_generalized_rcnn
from .retinanet import RetinaNet
from .roi_heads.box_head import BoxHead, box_head_options
from .roi_heads.extractors import (
    BOX_EXTRACTORS,
    KEYPOINT_EXTRACTORS,
    MASK_EXTRACTORS,
    ConvFeatureExtractor,
    Extractor,
    FPN2MLPFeatureExtractor,
    build_extractor,
)
from .roi_heads.pooler import POOLERS, Pooler, build_pooler
from .roi_heads.predictors import (
    BOX_PREDICTORS,
    KEYPOINT_PREDICTORS,
    MASK_PREDICTORS,
    BoxPredictor,
    build_predictor,
)
from .roi_heads.roi_head import RoIHead
from .roi_heads.roi_heads import RoIHeads, build_roi_heads
from .rpn.anchors import AnchorGenerator, build_anchors
from .rpn.head import RPN_HEADS, RPNHead
from .rpn.rpn import RPN, build_rpn

__all__ = [
    "BACKBONES", "BACKGROUND", "BODIES", "BOX_EXTRACTORS", "BOX_LOSSES", "BOX_PREDICTORS", "FPN",
    "IGNORE", "KEYPOINT_EXTRACTORS", "KEYPOINT_PREDICTORS", "MASK_EXTRACTORS", "MASK_PREDICTORS",
    "META_ARCHITECTURES", "NECKS", "POOLERS", "RPN", "RPN_HEADS", "SAMPLERS", "AnchorGenerator",
    "Backbone", "BoxCoder", "BoxHead", "BoxLoss", "BoxPredictor", "ConvFeatureExtractor",
    "DetectionModel", "Extractor", "FPN2MLPFeatureExtractor", "GeneralizedRCNN", "Matcher",
    "Normalizer", "Pooler", "Postprocess", "ProposalNetwork", "ProposalSampler", "RPNHead",
    "RetinaNet", "RoIHead", "RoIHeads", "RowPacking", "Sampler", "Suppression", "box_head_options",
    "build_anchors", "build_backbone", "build_box_loss", "build_extractor",
    "build_generalized_rcnn", "build_model", "build_norm", "build_normalizer", "build_pooler",
    "build_postprocess", "build_predictor", "build_proposal_sampler", "build_roi_heads",
    "build_rpn", "build_suppression", "conv_block", "first_valid", "gather", "generalized_iou",
    "init_he", "init_normal", "init_xavier", "top_scores",
]  # fmt: skip
