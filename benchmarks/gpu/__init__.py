"""What a GPU makes of loading and training, each figure beside what was predicted of it: python -m benchmarks.gpu."""
