"""Captions: where they are, which words they say at what time, and which parts of a video they cover."""
