"""The built-in transformations, one file each; add a new one to FILES."""

FILES = ("video", "time_shift", "modality", "time_reversal", "augmentation", "speed", "order", "rotation")
