"""Networks of section A.4: R(2+1)D for video, a ResNet for sound, a layer for words, a projection head for each."""
