"""HTML report of all runs below a folder: evaluations, learning curves and examples."""
