"""What the process imports that Dask's workers are forked from. None of it starts threads."""

import os

# before NumPy is imported
os.environ |= {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}

import distributed  # noqa: F401
import librosa  # noqa: F401

import gdt.preprocess.worker  # noqa: F401
from gdt.preprocess.logmel import slopes

slopes()
