"""Shared by all stages, and without knowledge of video: errors, files, locks, serialization, the command line."""
