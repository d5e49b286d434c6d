"""Benchmarks of detlite against torchvision, detectron2 and pycocotools on the same inputs.

`python -m benchmarks` runs them. Each library receives the inputs in its fastest format, and the
results are medians.
"""
