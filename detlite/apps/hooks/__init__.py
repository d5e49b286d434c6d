"""Hooks that report training runs to experiment trackers."""
