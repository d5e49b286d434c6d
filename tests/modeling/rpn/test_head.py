import torch
from torch.nn import functional as F

from detlite.modeling.rpn.head import SeparableRPNHead, SingleConvRPNHead


def test_head_shares_its_layers_between_levels():
    head = SingleConvRPNHead(in_channels=4, anchors_per_cell=3)
    maps = [torch.randn(2, 4, 6, 5), torch.randn(2, 4, 3, 3)]
    logits, deltas = head(maps)
    assert [x.shape for x in logits] == [(2, 3, 6, 5), (2, 3, 3, 3)]
    assert [x.shape for x in deltas] == [(2, 12, 6, 5), (2, 12, 3, 3)]
    assert len(list(head.parameters())) == 6
    torch.testing.assert_close(logits[0][0], head.cls_logits(F.relu(head.conv(maps[0][:1])))[0])


def test_separable_rpn_head_shares_its_blocks_between_levels():
    head = SeparableRPNHead(8, 3)
    levels = [torch.randn(2, 8, size, size + 1) for size in (8, 4)]
    logits, deltas = head(levels)
    assert [x.shape for x in logits] == [(2, 3, 8, 9), (2, 3, 4, 5)]
    assert [x.shape for x in deltas] == [(2, 12, 8, 9), (2, 12, 4, 5)]
    alone, _ = head(levels[1:])
    torch.testing.assert_close(alone[0], logits[1])
