"""JPEG to pixels on a processor: libjpeg-turbo, by simplejpeg, or where that is not installed by OpenCV."""

from __future__ import annotations

import numpy as np

try:
    import simplejpeg
except ImportError:
    simplejpeg = None


class Undecodable(RuntimeError):
    """A frame is no JPEG of the size that it should have."""


def decode(jpeg: np.ndarray, into: np.ndarray) -> None:
    """Bytes of one frame to RGB: uint8 [height, width, 3]. Raises Undecodable."""
    try:
        frame = (_with_opencv if simplejpeg is None else _with_simplejpeg)(jpeg, into)
    except ValueError as error:
        raise Undecodable(str(error)) from error
    if frame.shape != into.shape:
        raise Undecodable(f"a frame has {frame.shape[1]}x{frame.shape[0]} pixels, not {into.shape[1]}x{into.shape[0]}")
    if not np.shares_memory(frame, into):
        into[:] = frame


def _with_simplejpeg(jpeg: np.ndarray, into: np.ndarray) -> np.ndarray:
    frame: np.ndarray
    try:
        frame = simplejpeg.decode_jpeg(jpeg, buffer=into)
    except ValueError as error:
        if "Premature end" in str(error):
            raise
        # what OpenCV and DALI take, too: damage that was there before the frame was written, in the middle of it
        frame = simplejpeg.decode_jpeg(jpeg, strict=False, buffer=into)
    return frame


def _with_opencv(jpeg: np.ndarray, _: np.ndarray) -> np.ndarray:
    import cv2

    frame: np.ndarray | None = cv2.imdecode(jpeg, cv2.IMREAD_COLOR_RGB) if len(jpeg) else None
    if frame is None:
        raise ValueError("it is no picture")
    return frame
