"""What every stage uses and that knows nothing of videos: errors, files, locks, serialisation, the command line."""
