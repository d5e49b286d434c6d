"""Checkpoints of torchvision, detectron2, mmdetection, maskrcnn-benchmark, Caffe2 and timm.

Each framework has a file or folder with a `CheckpointSource`, which describes how to rename, adapt
and configure its checkpoints. `convert.py` lists the frameworks, recognizes their files and
converts them.
"""
