"""The paper's pictures of features: how far the clips of a video lie apart, and where they lie on planes."""
