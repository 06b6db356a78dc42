"""Utilities of all stages, independent of video: errors, files, locks, processes, serialization, the command line."""
