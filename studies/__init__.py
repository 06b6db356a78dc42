"""Tests of the paper: its theorem, its figures, our predictions, GRID."""
