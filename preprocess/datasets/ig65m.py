"""IG65M, which was never published: any tree of videos."""

from gdt.preprocess.datasets.folder import DATA

__all__ = ["DATA"]
