"""Prediction: inputs, test-time augmentation, tiling and optimized models."""
