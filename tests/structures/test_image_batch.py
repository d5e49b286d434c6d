from __future__ import annotations

import pytest
import torch

from detlite.structures.image_batch import batch_images


def test_images_lie_at_the_top_left_with_zeros_around():
    images = [torch.rand(3, 5, 9) + 1, torch.rand(3, 7, 4) + 1]
    batch = batch_images(images)
    assert batch.tensor.shape == (2, 3, 7, 9)
    assert batch.sizes == [(5, 9), (7, 4)]
    for padded, image in zip(batch.tensor, images, strict=True):
        h, w = image.shape[1:]
        assert torch.equal(padded[:, :h, :w], image)
        assert padded.sum() == pytest.approx(image.sum().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("step", "shape"), [(0, (33, 64)), (1, (33, 64)), (32, (64, 64)), (10, (40, 70))]
)
def test_size_is_a_multiple(step, shape):
    batch = batch_images([torch.zeros(3, 33, 60), torch.zeros(3, 20, 64)], step)
    assert batch.tensor.shape[-2:] == shape
    assert batch.sizes == [(33, 60), (20, 64)]


def test_batch_is_channels_last_and_keeps_the_type():
    batch = batch_images([torch.zeros(3, 4, 5, dtype=torch.float64)])
    assert batch.tensor.dtype == torch.float64
    assert batch.tensor.is_contiguous(memory_format=torch.channels_last)


def test_batch_is_contiguous_where_asked():
    batch = batch_images([torch.zeros(3, 4, 5)], memory_format=torch.contiguous_format)
    assert batch.tensor.is_contiguous()
