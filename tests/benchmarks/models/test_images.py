"""Generated images and targets."""

import torch

from benchmarks.models.images import to_torchvision_batch, training_batch


def test_torchvision_batches_have_the_same_objects():
    batch = training_batch(2, 96, 128, 4, 3)
    images, targets = to_torchvision_batch(batch, "cpu")
    for image, target, original, expected in zip(images, targets, *batch, strict=True):
        assert original.dtype == torch.uint8
        torch.testing.assert_close(image * 255, original.float())
        assert set(target["labels"].tolist()) <= {1, 2}
        assert torch.equal(target["boxes"], expected["boxes"])
        for box, mask in zip(target["boxes"], target["masks"], strict=True):
            y, x = mask.nonzero().T
            assert len(x) > 0.1 * (box[2] - box[0]) * (box[3] - box[1])
            assert x.min() >= box[0] - 1
            assert x.max() <= box[2] + 1
            assert y.min() >= box[1] - 1
            assert y.max() <= box[3] + 1
