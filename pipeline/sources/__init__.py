"""What makes the leaves of each modality out of shards, one file each; the loader joins them into batches."""
