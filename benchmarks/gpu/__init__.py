"""Speed of loading and training on a GPU, against predictions: python -m benchmarks.gpu."""
