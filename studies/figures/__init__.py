"""The paper's figures of features: deviation over the clips of a video, and maps of clips."""
