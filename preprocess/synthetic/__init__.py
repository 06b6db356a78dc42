"""The synthetic data set, whose videos are generated."""
