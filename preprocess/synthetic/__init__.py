"""The synthetic data set, whose videos are generated."""

from gdt.preprocess.synthetic.files import generate
from gdt.preprocess.synthetic.moments import Synthetic

__all__ = ["Synthetic", "generate"]
