"""Rows of the paper's table 1 side by side."""
