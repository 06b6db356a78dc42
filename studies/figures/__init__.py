"""The paper's pictures of features: deviation over the clips of a video, and clips on planes."""
