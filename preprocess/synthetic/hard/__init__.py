"""The generated data set on which rows can differ; docs/synthetic_hard.md says what it is and why."""

from gdt.preprocess.synthetic.hard.actions import ACTIONS
from gdt.preprocess.synthetic.hard.files import generate
from gdt.preprocess.synthetic.hard.scene import SyntheticHard

__all__ = ["ACTIONS", "SyntheticHard", "generate"]
