"""Videos to shards."""
