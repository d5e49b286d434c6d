"""Data structures of the model: boxes, masks, keypoints and batches of images and records."""
