"""What can be done to a video, one file each; a new one is a file here and its name in pipeline/notation.py."""
