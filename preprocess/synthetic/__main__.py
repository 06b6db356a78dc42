"""python -m preprocess.synthetic: make the generated data set."""

from __future__ import annotations

import tyro

from pipeline.errors import exit_with_message
from preprocess.synthetic.standard import generate

if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(generate, config=(tyro.conf.OmitArgPrefixes,)))
