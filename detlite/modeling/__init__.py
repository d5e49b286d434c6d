"""The detector: start reading at `rcnn.py`."""
