"""Muon's updates are near-orthogonal, and its weights follow them."""

from __future__ import annotations

import pytest
import torch
from training.optimisers import Muon, orthogonalise


@pytest.mark.parametrize("shape", [(16, 16), (8, 24), (24, 8), (3, 12, 20)])
def test_singular_values_come_near_one(shape: tuple[int, ...]) -> None:
    gradient = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    found = orthogonalise(gradient)
    assert found.shape == gradient.shape
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.3
    assert values.max() < 1.3
    # Its scale does not matter, its direction does.
    assert torch.allclose(orthogonalise(1000 * gradient), found, atol=1e-3)
    assert (found * gradient).sum() > 0


def test_a_step_goes_against_the_gradient_and_a_batch_is_its_matrices() -> None:
    generator = torch.Generator().manual_seed(0)
    start, gradient = torch.randn(2, 2, 8, 4, generator=generator)
    batch = torch.nn.Parameter(start.clone())
    single = [torch.nn.Parameter(matrix.clone()) for matrix in start]
    for params, grads in (([batch], [gradient]), (single, list(gradient))):
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.clone()
        Muon(params, lr=0.1, weight_decay=0.0).step()
    assert torch.allclose(batch, torch.stack(list(single)), atol=1e-5)
    assert ((batch - start) * gradient).sum() < 0
