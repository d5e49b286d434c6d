"""Milliseconds per image of the shipped models and of YOLO, each in a separate process."""
