"""Rotary tables (model notes, section 4).

Two tables per model: one for window-only layers, one with YaRN frequency blending for layers that
read compressed entries. No magnitude factor anywhere.
"""

import math

import torch

from engine.model.config import ModelConfig, YarnConfig


def frequencies(theta: float, rope_dim: int, yarn: YarnConfig | None) -> torch.Tensor:
    """Returns the angle per position of each channel pair.

    Args:
        theta: Base of the geometric series.
        rope_dim: Rotated channels.
        yarn: Blending, or None.

    Returns:
        [rope_dim / 2] float64.
    """
    pair = torch.arange(rope_dim // 2, dtype=torch.float64)
    freq = theta ** (-2.0 * pair / rope_dim)
    if yarn is None:
        return freq
    low, high = yarn_range(theta, rope_dim, yarn)
    ramp = ((pair - low) / max(high - low, 1e-3)).clamp(0.0, 1.0)
    return freq / yarn.factor * ramp + freq * (1.0 - ramp)


def yarn_range(theta: float, rope_dim: int, yarn: YarnConfig) -> tuple[int, int]:
    """Returns the first and last pair of the blended range."""

    def corr(turns: float) -> float:
        return (
            rope_dim
            * math.log(yarn.original_length / (2 * math.pi * turns))
            / (2 * math.log(theta))
        )

    low = max(math.floor(corr(yarn.beta_fast)), 0)
    high = min(math.ceil(corr(yarn.beta_slow)), rope_dim - 1)
    return low, high


class RotaryTables:
    """Rotations of every position: `window` for layers without, `long` for those with entries.

    Both are [positions, rope_dim / 2] complex64.
    """

    def __init__(self, config: ModelConfig) -> None:
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float64)
        plain = frequencies(config.rope_theta, config.rope_head_dim, None)
        blended = frequencies(config.compress_rope_theta, config.rope_head_dim, config.yarn)
        self.window = _rotations(positions, plain)
        self.long = _rotations(positions, blended)


def _rotations(positions: torch.Tensor, freq: torch.Tensor) -> torch.Tensor:
    # Public implementations take cos and sin of float32 angles. At long positions a float32 angle
    # is off by up to 2^-24 of its size; float64 angles stay within every stated tolerance of them.
    angle = positions[:, None] * freq[None, :]
    return torch.complex(angle.cos().float(), angle.sin().float())
