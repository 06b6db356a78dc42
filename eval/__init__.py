"""Evaluation of checkpoints: protocols, tables, plots and reports."""
