"""A search over compositions of given factors."""
