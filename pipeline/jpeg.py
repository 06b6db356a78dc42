"""JPEG to pixels on a processor: libjpeg-turbo, by simplejpeg."""

from __future__ import annotations

import numpy as np
import simplejpeg


class DecodeError(RuntimeError):
    """A frame is no JPEG of the size that it should have."""


def decode(jpeg: np.ndarray, into: np.ndarray) -> None:
    """Bytes of one frame to RGB: uint8 [height, width, 3]. Raises DecodeError."""
    try:
        frame = _decoded(jpeg, into)
    except ValueError as error:
        raise DecodeError(str(error)) from error
    if frame.shape != into.shape:
        raise DecodeError(f"a frame has {frame.shape[1]}x{frame.shape[0]} pixels, not {into.shape[1]}x{into.shape[0]}")
    if not np.shares_memory(frame, into):
        into[:] = frame


def _decoded(jpeg: np.ndarray, into: np.ndarray) -> np.ndarray:
    frame: np.ndarray
    try:
        frame = simplejpeg.decode_jpeg(jpeg, buffer=into)
    except ValueError as error:
        if "Premature end" in str(error):
            raise
        # what DALI takes, too: damage that was there before the frame was written, in the middle of it
        frame = simplejpeg.decode_jpeg(jpeg, strict=False, buffer=into)
    return frame
