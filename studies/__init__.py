"""Studies of the paper: its theorem, its figures of features, when compositions win, our predictions, GRID."""
