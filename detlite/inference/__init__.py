"""Prediction: test-time augmentation, tiling, optimized models, and exports of results."""
