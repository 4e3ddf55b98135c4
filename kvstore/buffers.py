"""The memory that values are sent from and received into."""

from __future__ import annotations

import ctypes

_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.restype = ctypes.py_object
_new_bytearray.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)

Buffer = bytes | bytearray | memoryview
"""Opaque bytes. A memoryview must be contiguous; its items may have any format."""


def flat_view(buffer: Buffer) -> memoryview:
    """The bytes of a contiguous buffer as a one-dimensional view, without a copy."""
    view = memoryview(buffer)
    if view.nbytes == 0:
        return memoryview(b"")  # views with a zero in their shape cannot be cast
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def new_buffer(num_bytes: int) -> bytearray:
    """A buffer of undefined content: whoever asks for it fills all of it.

    `bytearray(n)` writes zeros first, which costs a fifth of receiving the bytes themselves.
    """
    if num_bytes < 0:
        raise ValueError(f"a buffer of {num_bytes} bytes")
    buffer: bytearray = _new_bytearray(None, num_bytes)
    return buffer
