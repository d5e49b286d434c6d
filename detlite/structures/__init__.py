"""What flows through the model: boxes, masks and batches of images."""
