"""Inner loops of the loader on a CPU, compiled on first use; they release the GIL."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit


def _compiled(function: Callable[..., None]) -> Any:
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no writable cache folder: every process compiles again
        return njit(nogil=True)(function)


# Unsigned indices need no check for negative values; loops over whole slices are vectorised. Products and sums are not
# fused, so that rounding is the same on every CPU.


@_compiled
def resize(
    frames: np.ndarray,
    order: np.ndarray,
    top: np.ndarray,
    bottom: np.ndarray,
    down: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    across: np.ndarray,
    out: np.ndarray,
) -> None:
    """Bilinear interpolation, rounded, of `frames` [order [k]] to `out` [k]: uint8 [frames, height, 3 * width] to uint8
    [frames, rows, 3 * columns].

    Row r mixes the frame's rows `top` [r] and `bottom` [r]; `down` [r] is the weight of the second. Column c mixes the
    pixels that begin at the bytes `left` [c] and `right` [c]; `across` [c] is the weight of the second.
    """
    begin = min(left.min(), right.min())
    end = max(left.max(), right.max()) + 3
    line = np.empty(end - begin, np.float32)
    mixed = np.empty(out.shape[2], np.float32)
    one = np.uint64(1)
    two = np.uint64(2)
    half = np.float32(0.5)
    for number in range(len(order)):
        frame = frames[order[number]]
        for r in range(out.shape[1]):
            above = frame[top[r], begin:end]
            below = frame[bottom[r], begin:end]
            share = down[r]
            for k in range(len(line)):
                first = np.float32(above[k])
                line[k] = first + (np.float32(below[k]) - first) * share
            for c in range(len(left)):
                near = np.uint64(left[c] - begin)
                far = np.uint64(right[c] - begin)
                to = np.uint64(3 * c)
                part = across[c]
                mixed[to] = line[near] + (line[far] - line[near]) * part
                mixed[to + one] = line[near + one] + (line[far + one] - line[near + one]) * part
                mixed[to + two] = line[near + two] + (line[far + two] - line[near + two]) * part
            row = out[number, r]
            for k in range(len(mixed)):
                row[k] = np.uint8(np.int32(mixed[k] + half))


@_compiled
def affine_map(values: np.ndarray, matrix: np.ndarray, offset: np.ndarray, out: np.ndarray) -> None:
    """`matrix` [3, 3] times every pixel plus `offset` [3]: uint8 [3 * n] to `out`, float32 [3 * n].

    Output k sums values k - 2 to k + 2 times factors, 0 for values of other pixels, so SIMD code needs no shuffling.
    """
    tile = 192
    factors = np.zeros((5, tile), np.float32)
    shift = np.empty(tile, np.float32)
    for k in range(tile):
        channel = k % 3
        shift[k] = offset[channel]
        for source in range(3):
            factors[2 + source - channel, k] = matrix[channel, source]
    f0 = factors[0]
    f1 = factors[1]
    f2 = factors[2]
    f3 = factors[3]
    f4 = factors[4]
    x = np.zeros(tile + 4, np.float32)
    for first in range(0, len(values), tile):
        n = min(tile, len(values) - first)
        part = values[first : first + n]
        to = out[first : first + n]
        x0 = x[:n]
        x1 = x[1 : n + 1]
        x2 = x[2 : n + 2]
        x3 = x[3 : n + 3]
        x4 = x[4 : n + 4]
        for k in range(n):
            x2[k] = part[k]
        for k in range(n):
            to[k] = f0[k] * x0[k] + f1[k] * x1[k] + f2[k] * x2[k] + f3[k] * x3[k] + f4[k] * x4[k] + shift[k]
