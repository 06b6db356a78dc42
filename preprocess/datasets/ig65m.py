"""IG65M was never published: a collection of millions of files in any arrangement."""

from gdt.preprocess.datasets.folder import DATA

__all__ = ["DATA"]
