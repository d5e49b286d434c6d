"""Training, evaluation and the files that they leave."""
