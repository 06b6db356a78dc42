"""Networks of section A.3.4: R(2+1)D for video, a ResNet for audio, a linear layer for text, and projection heads."""
