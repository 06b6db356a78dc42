"""The shards of a data set: how they are laid out and written, their index, and random access to them."""
