"""How far apart the pixels of two decoders may be."""

from __future__ import annotations

import torch

MEAN, NEARLY_ALL = 1.5, 8
"""Grey levels by which GPU and CPU decoders may differ: the mean over a leaf, and 99.9 % of its values.

Both take the same bytes and interpolate chroma in the same way (jpeg_fancy_upsampling), so only rounding differs.
libjpeg-turbo's own two inverse transforms differ by 0.9 to 1.1 levels on average and 99.9 % of the values by at
most 4, on drawn and on generated frames; with chroma repeated instead of interpolated it is 1.3 to 3.7, and 12 to 49.
"""


def levels(one: torch.Tensor, other: torch.Tensor) -> tuple[float, int, int]:
    """Difference of the worst leaf of byte crops [n, ...]: mean, 99.9 % quantile, maximum."""
    off = (one.short() - other.short()).abs().flatten(1)
    few = max(1, off.shape[1] // 1000)
    return float(off.float().mean(1).max()), int(off.topk(few, 1).values[:, -1].max()), int(off.max())
