"""python -m preprocess.synthetic.hard: make the generated data set on which rows can differ."""

from __future__ import annotations

import tyro

from pipeline.errors import exit_with_message
from preprocess.synthetic.hard.files import generate

if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(generate, config=(tyro.conf.OmitArgPrefixes,)))
