"""The format of the shards: layout (the table of what is in them), writer, index, reader, and the seal of a file."""
