from gdt.preprocess.synthetic.actions import ACTIONS
from gdt.preprocess.synthetic.scene import Synthetic
from gdt.preprocess.synthetic.standard import generate

__all__ = ["ACTIONS", "Synthetic", "generate"]
