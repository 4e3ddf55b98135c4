"""Manifold-constrained hyper-connections: contracts (model notes, sections 3.1 to 3.3).

`n` residual streams of width `d` per token. Coefficients are float32.
"""

from collections.abc import Callable
from typing import Any

import torch

from disagg_kernels.checks import expect

Implementation = Callable[..., Any]


def hc_pre(
    implementation: Implementation,
    streams: torch.Tensor,
    projection: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    *,
    rms_eps: float,
    hc_eps: float,
    sinkhorn_iters: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the coefficients of one sublayer site.

    Args:
        streams: [rows, n, d].
        projection: [n * d, (2 + n) * n] float32 (the transpose of the stored `fn`).
        scale: [(2 + n) * n] float32: the three scales repeated over pre, post and comb.
        base: [(2 + n) * n] float32.

    Returns:
        pre [rows, n], post [rows, n], comb [rows, n (from), n (to)], all float32.
    """
    expect(streams, "streams", (None, None, None))
    n = streams.shape[1]
    expect(projection, "projection", (n * streams.shape[2], (2 + n) * n), dtype=torch.float32)
    expect(scale, "scale", ((2 + n) * n,), dtype=torch.float32)
    expect(base, "base", ((2 + n) * n,), dtype=torch.float32)
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = implementation(
        streams, projection, scale, base, rms_eps, hc_eps, sinkhorn_iters
    )
    return result


def hc_mix(
    implementation: Implementation, streams: torch.Tensor, pre: torch.Tensor
) -> torch.Tensor:
    """Returns `sum_j pre_j * streams_j`: [rows, n, d] and [rows, n] give [rows, d]."""
    expect(pre, "pre", (streams.shape[0], streams.shape[1]))
    result: torch.Tensor = implementation(streams, pre)
    return result


def hc_post(
    implementation: Implementation,
    y: torch.Tensor,
    streams: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
) -> torch.Tensor:
    """Returns the new streams `post_k * y + sum_j comb[j, k] * streams_j`.

    Args:
        y: [rows, d], the sublayer's output.
        streams: [rows, n, d].
        post: [rows, n].
        comb: [rows, n, n]; the sum runs over the first n.

    Returns:
        [rows, n, d].
    """
    rows, n, d = streams.shape
    expect(y, "y", (rows, d))
    expect(post, "post", (rows, n))
    expect(comb, "comb", (rows, n, n))
    result: torch.Tensor = implementation(y, streams, post, comb)
    return result


def hc_head(
    implementation: Implementation,
    streams: torch.Tensor,
    projection: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    *,
    rms_eps: float,
    hc_eps: float,
) -> torch.Tensor:
    """Collapses the streams after the last layer of V4.

    Args:
        streams: [rows, n, d].
        projection: [n * d, n] float32 (the transpose of the stored `hc_head_fn`).
        scale: [1] float32.
        base: [n] float32.

    Returns:
        [rows, d].
    """
    n = streams.shape[1]
    expect(projection, "projection", (n * streams.shape[2], n), dtype=torch.float32)
    expect(scale, "scale", (1,), dtype=torch.float32)
    expect(base, "base", (n,), dtype=torch.float32)
    result: torch.Tensor = implementation(streams, projection, scale, base, rms_eps, hc_eps)
    return result
