from preprocess.synthetic.actions import ACTIONS
from preprocess.synthetic.files import generate
from preprocess.synthetic.scene import Synthetic

__all__ = ["ACTIONS", "Synthetic", "generate"]
