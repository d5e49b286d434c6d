"""Read ground truth and results from COCO files or from memory, and check that they fit."""
