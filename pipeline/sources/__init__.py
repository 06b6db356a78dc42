"""Sources of the leaves of each modality, one file each; pipeline/loader.py lists them."""
