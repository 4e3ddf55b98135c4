"""Random tensors with a seed, and the distance between two."""

import torch


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Standard normal float32 values; the same seed and shape give the same values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference; tensors of different shapes are infinitely far apart."""
    if found.shape != expected.shape:
        return float("inf")
    if found.numel() == 0:
        return 0.0
    return float((found.double() - expected.double()).abs().max())
