"""Measurements a person can repeat; every figure is a ratio within one run, or a rate beside the machine's name."""
