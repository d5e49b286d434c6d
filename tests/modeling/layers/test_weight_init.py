import torch
from torch import nn

from detlite.modeling.layers.conv_block import conv_block, separable_block


def test_separable_blocks_keep_the_scale_of_maps():
    """Otherwise gradients of a sequence of blocks would vanish initially."""
    x = torch.randn(2, 96, 16, 16)
    stacks = [nn.Sequential(*(block(96, 96, 3, relu=True) for _ in range(4)))
            for block in (separable_block, conv_block)]  # fmt: skip
    ours, plain = (stack(x).std() for stack in stacks)
    assert 0.5 < ours / plain < 2
