"""95 % confidence intervals of shares."""

import math

Z = 1.959963984540054
"""97.5 % quantile of the normal distribution."""
FEWEST_VIDEOS = 20
"""Fewest held-out videos whose recall says anything."""


def wilson(share: float, answers: float) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927), which need not be a whole number of answers."""
    if not answers:
        return 0.0, 1.0
    z2 = Z**2 / answers
    middle = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / 4)) / (1 + z2)
    return max(0.0, middle - half), min(1.0, middle + half)
