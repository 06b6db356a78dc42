"""From videos to shards."""
