"""Measurements anyone can repeat: ratios within one run, and rates with the name of the machine."""
