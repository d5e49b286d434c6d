import torch

from detlite.modeling.rpn.head import SeparableRPNHead


def test_separable_rpn_head_shares_its_blocks_between_levels():
    head = SeparableRPNHead(8, 3)
    levels = [torch.randn(2, 8, size, size + 1) for size in (8, 4)]
    logits, deltas = head(levels)
    assert [x.shape for x in logits] == [(2, 3, 8, 9), (2, 3, 4, 5)]
    assert [x.shape for x in deltas] == [(2, 12, 8, 9), (2, 12, 4, 5)]
    alone, _ = head(levels[1:])
    torch.testing.assert_close(alone[0], logits[1])
