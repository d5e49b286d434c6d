"""Training loop, hooks, checkpoints of runs, and evaluation of whole datasets."""
