"""Ablations: pretrain compositions, evaluate them, and compare the rows."""
