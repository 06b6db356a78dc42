"""Tests of the paper: its theorem, its figures, our predictions, GRID. Nothing else depends on them."""
