"""Captions: their files, the words they say and when, and the parts of a video they cover."""
