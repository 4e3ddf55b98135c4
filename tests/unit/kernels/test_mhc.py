"""Hyper-connections against loops over their formulas in float64, and the Sinkhorn vectors."""

import math

import pytest
import torch

from disagg_kernels import select_kernels
from tests.fakes.tensors import distance, normal
from tests.fakes.vectors import vectors

OPS = select_kernels("cpu")
SINKHORN = vectors("sinkhorn")


@pytest.mark.parametrize("name", SINKHORN)
def test_the_sinkhorn_vectors(name: str) -> None:
    """With a projection of zeros the logits of comb are the base alone."""
    vector = SINKHORN[name]
    logits = torch.tensor(vector["inputs"]["logits"])
    base = torch.cat([torch.zeros(4), logits.flatten()])
    _, _, comb = OPS.hc_pre(
        normal(3, 2, 5),
        torch.zeros(10, 8),
        torch.ones(8),
        base,
        rms_eps=1e-6,
        hc_eps=vector["inputs"]["eps"],
        sinkhorn_iters=vector["inputs"]["iterations"],
    )
    expected = torch.tensor(vector["expected"]["matrix"], dtype=torch.float64)
    assert distance(comb, expected.expand(3, -1, -1)) < 1e-6


def coefficients(
    streams: torch.Tensor,
    projection: torch.Tensor,
    scale: list[float],
    base: list[float],
    eps: float,
    iters: int,
) -> tuple[list[float], list[float], list[list[float]]]:
    """pre, post and comb of one row, by the page."""
    n = streams.shape[0]
    flat = streams.flatten().double()
    mixed = flat @ projection.double() / math.sqrt(float((flat * flat).mean()) + eps)
    m = [float(v) * s + b for v, s, b in zip(mixed, scale, base, strict=True)]
    pre = [1 / (1 + math.exp(-v)) + eps for v in m[:n]]
    post = [2 / (1 + math.exp(-v)) for v in m[n : 2 * n]]
    comb = []
    for j in range(n):
        row = [math.exp(v) for v in m[2 * n + j * n : 2 * n + (j + 1) * n]]
        comb.append([v / sum(row) + eps for v in row])
    for turn in range(2 * iters - 1):
        if turn % 2:
            comb = [[v / (sum(row) + eps) for v in row] for row in comb]
        else:
            sums = [sum(row[k] for row in comb) + eps for k in range(n)]
            comb = [[row[k] / sums[k] for k in range(n)] for row in comb]
    return pre, post, comb


@pytest.mark.parametrize(("n", "iters"), [(2, 4), (4, 1), (4, 20)])
def test_coefficients_are_the_page(n: int, iters: int) -> None:
    d, rows = 6, 3
    streams, projection = normal(rows, n, d), normal(n * d, (2 + n) * n, seed=1)
    base, scale = normal((2 + n) * n, seed=2), normal((2 + n) * n, seed=3)
    pre, post, comb = OPS.hc_pre(
        streams, projection, scale, base, rms_eps=1e-6, hc_eps=1e-6, sinkhorn_iters=iters
    )
    for row in range(rows):
        wanted = coefficients(streams[row], projection, scale.tolist(), base.tolist(), 1e-6, iters)
        assert pre[row].tolist() == pytest.approx(wanted[0], abs=1e-5)
        assert post[row].tolist() == pytest.approx(wanted[1], abs=1e-5)
        assert distance(comb[row], torch.tensor(wanted[2])) < 1e-5


def test_collapse_sums_streams() -> None:
    streams, pre = normal(3, 4, 5), normal(3, 4, seed=1)
    found = OPS.hc_mix(streams, pre)
    for row in range(3):
        for channel in range(5):
            expected = sum(float(pre[row, j]) * float(streams[row, j, channel]) for j in range(4))
            assert float(found[row, channel]) == pytest.approx(expected, abs=1e-5)


def test_expand_sums_over_the_first_axis_of_comb() -> None:
    y, streams = normal(3, 5), normal(3, 4, 5, seed=1)
    post, comb = normal(3, 4, seed=2), normal(3, 4, 4, seed=3)
    found = OPS.hc_post(y, streams, post, comb)
    for row in range(3):
        for k in range(4):
            expected = post[row, k].double() * y[row].double()
            for j in range(4):
                expected = expected + comb[row, j, k].double() * streams[row, j].double()
            assert distance(found[row, k], expected) < 1e-5


def test_head_is_a_sigmoid_mix() -> None:
    streams, projection, base = normal(3, 4, 5), normal(20, 4, seed=1), normal(4, seed=2)
    found = OPS.hc_head(streams, projection, torch.tensor([0.7]), base, rms_eps=1e-6, hc_eps=1e-6)
    for row in range(3):
        flat = streams[row].flatten().double()
        mixed = flat @ projection.double() / math.sqrt(float((flat * flat).mean()) + 1e-6)
        weights = torch.sigmoid(mixed * 0.7 + base.double()) + 1e-6
        expected = (weights[:, None] * streams[row].double()).sum(0)
        assert distance(found[row], expected) < 1e-5


def test_no_rows_are_legal() -> None:
    streams = normal(0, 4, 5)
    pre, post, comb = OPS.hc_pre(
        streams,
        normal(20, 24),
        normal(24),
        normal(24),
        rms_eps=1e-6,
        hc_eps=1e-6,
        sinkhorn_iters=3,
    )
    assert (pre.shape, post.shape, comb.shape) == ((0, 4), (0, 4), (0, 4, 4))
    assert OPS.hc_mix(streams, pre).shape == (0, 5)
    assert OPS.hc_post(normal(0, 5), streams, post, comb).shape == (0, 4, 5)
    head = OPS.hc_head(streams, normal(20, 4), torch.ones(1), normal(4), rms_eps=1e-6, hc_eps=1e-6)
    assert head.shape == (0, 5)


def test_wrong_arguments_are_named() -> None:
    streams = normal(2, 4, 5)
    good = (normal(20, 24), normal(24), normal(24))

    def pre(*changed: torch.Tensor) -> object:
        return OPS.hc_pre(streams, *changed, rms_eps=1e-6, hc_eps=1e-6, sinkhorn_iters=2)

    def head(scale: torch.Tensor, base: torch.Tensor) -> object:
        return OPS.hc_head(streams, normal(20, 4), scale, base, rms_eps=1e-6, hc_eps=1e-6)

    for call, message in (
        (lambda: pre(normal(24, 20), *good[1:]), "projection: shape (24, 20), wanted [20, 24]"),
        (lambda: pre(good[0], normal(3), good[2]), "scale: shape (3,), wanted [24]"),
        (lambda: pre(*good[:2], normal(24).double()), "base: dtype torch.float64, wanted"),
        (lambda: OPS.hc_mix(streams, normal(2, 3)), "pre: shape (2, 3), wanted [2, 4]"),
        (
            lambda: OPS.hc_post(normal(2, 4), streams, normal(2, 4), normal(2, 4, 4)),
            "y: shape (2, 4), wanted [2, 5]",
        ),
        (
            lambda: OPS.hc_post(normal(2, 5), streams, normal(2, 4), normal(2, 4)),
            "comb: shape (2, 4), wanted [2, 4, 4]",
        ),
        (lambda: head(torch.ones(4), normal(4)), "scale: shape (4,), wanted [1]"),
        (lambda: head(torch.ones(1), normal(1)), "base: shape (1,), wanted [4]"),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value).startswith(message)
