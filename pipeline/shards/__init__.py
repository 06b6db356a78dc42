"""The shard format: layout (its table of datasets), writer, index, reader, and seal (checksums of a file)."""
