"""What makes the leaves of each modality out of shards, one file each; pipeline/loader.py lists and joins them."""
