"""From shards to batches: the shard layout, the paper's algebra, the sampling tree and the loader."""
