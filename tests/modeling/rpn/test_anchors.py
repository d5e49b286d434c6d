import pytest
import torch

from detlite.config import ConfigError
from detlite.conventions import CONVENTIONS
from detlite.modeling.build import build_model
from detlite.modeling.rpn.anchors import AnchorGenerator, per_anchor

# Anchors at the center of their cell, and at its corner.
DETLITE, DETECTRON2 = CONVENTIONS["detlite"], CONVENTIONS["detectron2"]


def test_anchors_by_hand():
    generator = AnchorGenerator([(4, 8)], (0.25, 1.0), (16,), DETLITE)
    (anchors,) = generator([(1, 2)])
    assert generator.per_cell == [4]
    assert anchors.dtype == torch.float32
    # ratio = height / width: 0.25 makes 4 x 4 into 8 wide and 2 high, centered at (8, 8), (24, 8)
    first = [[4, 7, 12, 9], [0, 6, 16, 10], [6, 6, 10, 10], [4, 4, 12, 12]]
    second = [[x1 + 16, y1, x2 + 16, y2] for x1, y1, x2, y2 in first]
    assert anchors.tolist() == first + second


@pytest.mark.parametrize(
    ("sizes", "c4", "per_cell"),
    [
        (((4, 8), (8, 16), (16, 32), (32, 64), (64, 128)), False, [6] * 5),
        (((8, 16), (32,)), True, [9]),  # a single map has anchors of all sizes
    ],
)
def test_several_sizes_per_level(tiny_config, sizes, c4, per_cell):
    model = build_model(tiny_config("MODEL.RPN.ANCHOR_SIZES", sizes, c4=c4))
    assert model.rpn.anchor_generator.per_cell == per_cell
    assert model.rpn.head.cls_logits.out_channels == per_cell[0]


def test_levels_need_the_same_number_of_sizes(tiny_config):
    sizes = ((4, 8), (16,), (32,), (64,), (128,))
    with pytest.raises(ConfigError, match=r"MODEL\.RPN\.ANCHOR_SIZES is .* the same number"):
        build_model(tiny_config("MODEL.RPN.ANCHOR_SIZES", sizes))


def test_per_anchor_order():
    """Channel 4 a + i of the head is coordinate i of anchor a, for any memory format."""
    deltas = torch.randn(2, 12, 3, 5)
    for inputs in (deltas, deltas.contiguous(memory_format=torch.channels_last), deltas.half()):
        flat = per_anchor(inputs, 4).view(2, 3, 5, 3, 4)
        assert flat.dtype == torch.float32
        for anchor in range(3):
            for coordinate in range(4):
                assert torch.equal(
                    flat[:, :, :, anchor, coordinate], inputs[:, 4 * anchor + coordinate].float()
                )
