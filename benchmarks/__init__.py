"""Benchmarks of detlite against torchvision, detectron2 and pycocotools on the same inputs.

`python -m benchmarks` runs them. The other libraries get the inputs in the form that is fastest for
them, and the results are medians.
"""
