"""Norms, rotations and linear maps: contracts.

Weights of linear maps are stored `[in, out]`, contiguous. On CPUs this is the layout for which a
row of the product does not depend on how many rows are multiplied along (see `testing`), and it
is also the faster one.
"""

from collections.abc import Callable
from typing import Any

import torch

from disagg_kernels.checks import expect

Implementation = Callable[..., Any]


def rms_norm(
    implementation: Implementation, x: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """Returns `weight * x * rsqrt(mean(x^2, last axis) + eps)`, computed in float32.

    Args:
        x: [..., width].
        weight: [width], or None for an unweighted norm.
        eps: Added to the mean.

    Returns:
        Same shape and dtype as `x`.
    """
    if weight is not None:
        expect(weight, "weight", (x.shape[-1],))
    result: torch.Tensor = implementation(x, weight, eps)
    return result


def apply_rope(
    implementation: Implementation,
    x: torch.Tensor,
    rotation: torch.Tensor,
) -> torch.Tensor:
    """Rotates adjacent pairs of the last channels of `x`, in place.

    Args:
        x: [rows, heads, width] float32; the last `2 * pairs` channels rotate.
        rotation: [rows, pairs] complex64, `exp(i * angle)`; its conjugate turns back.

    Returns:
        `x`.
    """
    expect(x, "x", (rotation.shape[0], None, None))
    expect(rotation, "rotation", (None, None), dtype=torch.complex64)
    result: torch.Tensor = implementation(x, rotation)
    return result


def linear(implementation: Implementation, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns `x @ weight`, accumulated in float32.

    Args:
        x: [rows, in].
        weight: [in, out], contiguous.

    Returns:
        [rows, out] float32.
    """
    expect(x, "x", (None, weight.shape[0]))
    result: torch.Tensor = implementation(x, weight)
    return result


def group_linear(
    implementation: Implementation, x: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """Applies one linear map per group.

    Args:
        x: [rows, groups, in].
        weight: [groups, in, out].

    Returns:
        [rows, groups, out].
    """
    expect(x, "x", (None, weight.shape[0], weight.shape[1]))
    result: torch.Tensor = implementation(x, weight)
    return result
