"""What can be done to a video, one file each; a new one is a file here and its name in FILES."""

FILES = ("video", "time_shift", "modality", "time_reversal", "augmentation", "speed", "order", "rotation")
