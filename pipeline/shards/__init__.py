"""The shard format: container (a checked HDF5 file), layout (the table of datasets), writer, index and reader."""
