"""Checkpoints of torchvision, detectron2, mmdetection, maskrcnn-benchmark, Caffe2 and timm.

Each framework has a file or folder with a `CheckpointSource`, which describes how to rename, adapt
and configure its checkpoints. `checkpoint_source.py` lists the frameworks and recognizes their
files, and `convert.py` converts them.
"""
