"""A linear layer over word vectors and the maximum over words (section A.3.4), with the release's parameter names."""

from torch import Tensor, nn
from torch.nn import functional

from gdt.pipeline.sources.text import Words


class TextNetwork(nn.Module):
    """Word vectors of n text clips, or a tensor [n, words, dimensions] padded with 0, to features [n, width].

    With `padding`, padding counts as words of zeros, as in the release; else it is excluded from the maximum.
    """

    def __init__(self, dimensions: int = 300, width: int = 2048, padding: bool = False) -> None:
        super().__init__()
        self.padding = padding
        self.fc1 = nn.Linear(dimensions, width)

    def forward(self, words: Words | Tensor) -> Tensor:
        vectors = words.vectors if isinstance(words, Words) else words
        mask = words.mask if isinstance(words, Words) else (words != 0).any(2)
        x = functional.relu(self.fc1(vectors.to(self.fc1.weight.dtype)))
        if self.padding:
            return x.amax(1)
        # after the ReLU, 0 is the feature of a clip without words
        return x.masked_fill(~mask[..., None], 0).amax(1)
