"""What can be done to a video, one file each; a composition puts them together."""
