from preprocess.synthetic.actions import ACTIONS
from preprocess.synthetic.scene import Synthetic
from preprocess.synthetic.standard import generate

__all__ = ["ACTIONS", "Synthetic", "generate"]
