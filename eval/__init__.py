"""Checkpoints to numbers and pictures."""
