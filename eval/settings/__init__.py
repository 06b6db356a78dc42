"""Settings of the commands of evaluation, in modules that need no torch, so that `--help` is there at once."""
