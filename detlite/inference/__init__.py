"""From pictures to detections: `predictor.py`, with test-time augmentation."""
