"""Utilities shared by all stages and independent of video: errors, files, locks, serialization, the command line."""
