import copy

import pytest
import torch
from torch import nn

from detlite.apps.export.parts import exportable_parts
from detlite.modeling.build import build_model
from tests.modeling.family import assert_same_detections, family_batch, family_config

NAMES = {
    "mask": ["backbone.dense", "rpn.head", "roi_heads.box.predictor", "roi_heads.mask.predictor"],
    "c4": ["backbone", "rpn.head", "roi_heads.box.feature_extractor.embedding",
           "roi_heads.box.predictor", "roi_heads.mask.predictor"],
    "cascade": ["backbone.dense", "rpn.head",
                *(f"roi_heads.box.{number}.predictor" for number in range(3)),
                "roi_heads.mask.predictor"],
    "fast": ["backbone.dense", "roi_heads.box.predictor", "roi_heads.mask.predictor"],
    "retinanet": ["backbone", "head"],
    "proposals": ["backbone.dense", "rpn.head"],
    "three mask heads": ["backbone.dense", "rpn.head", "roi_heads.box.predictor",
                         "roi_heads.mask.predictor", "roi_heads.mask.more.0.predictor",
                         "roi_heads.mask.more.1.predictor"],
}  # fmt: skip


class Counter(nn.Module):
    """Counts the calls of a part."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.calls = 0

    def forward(self, *arguments):
        self.calls += 1
        return self.module(*arguments)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_replaced_parts_compute_the_same(name, tiny_config):
    model = build_model(family_config(name, tiny_config)).eval()
    images, _, proposals = family_batch(model)
    expected = model.predict(images, proposals)
    model = copy.deepcopy(model)
    parts = exportable_parts(model)
    assert [part.name for part in parts] == NAMES[name]
    counters = {part.name: Counter(part.module) for part in parts}
    for part in parts:
        part.replace(counters[part.name])
    assert_same_detections(model.predict(images, proposals), expected)
    for path, counter in counters.items():
        assert model.get_submodule(path) is counter
        assert counter.calls > 0


def test_own_predictors_may_have_a_child_with_that_name(tiny_config):
    model = build_model(tiny_config()).eval()
    names = [part.name for part in exportable_parts(model)]
    own = nn.Sequential()
    own.add_module("predictor", model.roi_heads.mask.predictor)
    model.roi_heads.mask.predictor = own
    assert [part.name for part in exportable_parts(model)] == names
