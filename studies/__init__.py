"""Tests of the paper: its theorem, its pictures of features, our predictions, GRID."""
