"""Captions: their files, their words with times, and the parts of a video that they cover."""
