"""Argument checks of the contracts: each message names the argument, what came and what is wanted.

A dimension is given as a number (must match) or None (any). Zero rows are legal everywhere.
"""

from collections.abc import Sequence

import torch


def expect(
    tensor: torch.Tensor,
    name: str,
    shape: Sequence[int | None],
    *,
    dtype: torch.dtype | None = None,
    contiguous: bool = False,
) -> None:
    """Raises ValueError unless `tensor` has this shape, dtype and layout.

    Args:
        tensor: Any tensor.
        name: The argument's name, for the message.
        shape: One entry per axis; None accepts any size.
        dtype: Wanted dtype; None accepts any.
        contiguous: Whether the memory must be row-major without gaps.
    """
    found = tensor.shape
    # Plain loops: this runs some hundred times a step.
    good = len(found) == len(shape)
    if good:
        for want, got in zip(shape, found, strict=True):
            if want is not None and want != got:
                good = False
                break
    if not good:
        wanted = ", ".join("*" if size is None else str(size) for size in shape)
        raise ValueError(f"{name}: shape {tuple(found)}, wanted [{wanted}]")
    if dtype is not None and tensor.dtype is not dtype:
        raise ValueError(f"{name}: dtype {tensor.dtype}, wanted {dtype}")
    if contiguous and not tensor.is_contiguous():
        raise ValueError(f"{name}: strides {tensor.stride()}, wanted contiguous rows")


def same_device(name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """Raises ValueError unless both tensors lie on one device."""
    if tensor.device != other.device:
        raise ValueError(f"{name} is on {tensor.device}, {other_name} on {other.device}")
