"""Matching, sampling, coding, losses and suppression of boxes."""
