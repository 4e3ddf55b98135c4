"""Reference of `disagg_kernels.mhc`."""

import functools

import torch

from disagg_kernels.reference.dense import inverse_rms, linear, sigmoid


def _project(streams: torch.Tensor, projection: torch.Tensor, rms_eps: float) -> torch.Tensor:
    flat = streams.flatten(1)
    # One statistic over all streams; projecting first and scaling after is the released order.
    return linear(flat, projection).mul_(inverse_rms(flat, rms_eps))


@functools.cache
def _tables(n: int, hc_eps: float) -> tuple[torch.Tensor, ...]:
    """Constants of n streams.

    The first two replace each entry of a flat n x n matrix by its row's or column's sum: one small
    product per half step of Sinkhorn instead of a sum, an addition and a broadcast. Then the eps of
    every entry, and factor and offset of the gates.
    """
    eye, ones = torch.eye(n), torch.ones(n, n)
    gate = torch.ones(n)
    return (
        torch.kron(eye, ones),
        torch.kron(ones, eye),
        torch.full((n * n,), hc_eps),
        torch.cat([gate, 2.0 * gate]),
        torch.cat([hc_eps * gate, 0.0 * gate]),
    )


def hc_pre(
    streams: torch.Tensor,
    projection: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    rms_eps: float,
    hc_eps: float,
    sinkhorn_iters: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `disagg_kernels.mhc.hc_pre`."""
    n = streams.shape[1]
    mixed = torch.addcmul(base, _project(streams, projection, rms_eps), scale)
    over_rows, over_columns, floor, factor, offset = _tables(n, hc_eps)
    # pre = sigmoid + eps, post = 2 sigmoid.
    gates = torch.addcmul(offset, sigmoid(mixed[:, : 2 * n]), factor)
    pre, post = gates[:, :n], gates[:, n:]
    comb = torch.softmax(mixed[:, 2 * n :].unflatten(1, (n, n)), -1).flatten(1).add_(floor)
    comb.div_(torch.addmm(floor, comb, over_columns))
    for _ in range(sinkhorn_iters - 1):
        comb.div_(torch.addmm(floor, comb, over_rows))
        comb.div_(torch.addmm(floor, comb, over_columns))
    comb = comb.unflatten(1, (n, n))
    return pre, post, comb


def hc_mix(streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """See `disagg_kernels.mhc.hc_mix`."""
    return (streams * pre.unsqueeze(-1)).sum(1)


def hc_post(
    y: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    """See `disagg_kernels.mhc.hc_post`."""
    new = post.unsqueeze(-1) * y.unsqueeze(1)
    return torch.baddbmm(new, comb.mT, streams)


def hc_head(
    streams: torch.Tensor,
    projection: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    rms_eps: float,
    hc_eps: float,
) -> torch.Tensor:
    """See `disagg_kernels.mhc.hc_head`."""
    mixed = torch.addcmul(base, _project(streams, projection, rms_eps), scale)
    return hc_mix(streams, sigmoid(mixed).add_(hc_eps))
