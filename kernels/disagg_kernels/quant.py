"""Quantisers that belong to the model, and the rotation before them: contracts.

The formats are those of the model notes, section 11.1. A quantiser here rounds to the format and
comes straight back; storing the codes is lossless with respect to it.
"""

from collections.abc import Callable
from typing import Any

import torch

Implementation = Callable[..., Any]

FORMATS = ("fp8_64", "fp8_32", "fp4_32", "fp4_16")


def quantize_dequantize(implementation: Implementation, x: torch.Tensor, fmt: str) -> torch.Tensor:
    """Rounds `x` to a block format and returns the rounded values.

    Args:
        x: [..., width] float32; a last block may be shorter.
        fmt: `fp8_B` (E4M3, power-of-two scales) or `fp4_B` (E2M1; B = 32 power-of-two scales,
            B = 16 E4M3 scales), B channels a block.

    Returns:
        Same shape, float32.
    """
    if fmt not in FORMATS:
        raise ValueError(f"fmt: {fmt!r}, wanted one of {', '.join(FORMATS)}")
    block = int(fmt.split("_")[1])
    result: torch.Tensor = implementation(x, fmt, block)
    return result


def hadamard(implementation: Implementation, x: torch.Tensor) -> torch.Tensor:
    """Walsh-Hadamard transform of the last axis times `width**-0.5`; orthogonal, own inverse.

    Args:
        x: [..., width] float32, width a power of two.
    """
    width = x.shape[-1]
    if width & (width - 1):
        raise ValueError(f"x: width {width}, wanted a power of two")
    result: torch.Tensor = implementation(x)
    return result
