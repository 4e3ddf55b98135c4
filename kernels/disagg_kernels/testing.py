"""Self-tests of the operations: does a row depend on what else is computed along with it?

The answer depends on the CPU's instruction set and on the libraries behind torch, so an engine that
promises batch invariance asks at start instead of trusting a table. What was found on x86-64 with
torch 2.13.0 and how the operations deal with it:

* `x @ W` with W stored [in, out]: equal rows from two rows on, as long as the inner size is at most
  512 (longer sums are cut by us). With W stored [out, in] small batches differ.
* sigmoid, softplus, silu: the elements behind the last full vector round differently, so row counts
  are multiples of `ROW_MULTIPLE`.
* sums over a middle axis: differ unless the last axis is a multiple of 32.
* sums over keys in attention: masked padding changes nothing up to 256 keys at a time.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from disagg_kernels.attention import SINK_COLUMNS
from disagg_kernels.backend import Kernels
from disagg_kernels.index import KEY_TILE
from disagg_kernels.reference.dense import ROW_MULTIPLE

_ROWS = (ROW_MULTIPLE, 2 * ROW_MULTIPLE, 5 * ROW_MULTIPLE, 16 * ROW_MULTIPLE)
NEG_INF = float("-inf")
Normal = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Sizes of a model whose operations are to be tested.

    Attributes:
        linear: (in, out) of linear maps; group_linear: (groups, in, out).
        experts: Experts to multiply with, maybe fewer than the model has; routed: all it has.
    """

    linear: tuple[tuple[int, int], ...]
    group_linear: tuple[int, int, int]
    heads: int
    head_dim: int
    index_heads: int
    index_width: int
    streams: int
    hidden: int
    experts: int
    routed: int
    top_k: int
    expert_width: int


def row_dependences(kernels: Kernels, shapes: Shapes) -> list[str]:
    """Returns one sentence per operation whose rows depend on their neighbours; none is good.

    Args:
        kernels: The operations under test.
        shapes: The model's sizes.
    """
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    with torch.inference_mode():
        return [
            *_linear(kernels, shapes, normal),
            *_row_by_row(kernels, shapes, normal),
            *_streams(kernels, shapes, normal),
            *_experts(kernels, shapes, normal),
            *_attention(kernels, shapes, normal),
            *_index(kernels, shapes, normal),
        ]


def _differing(name: str, whole: torch.Tensor, parts: Iterable[torch.Tensor]) -> list[str]:
    bad = [part.shape[0] for part in parts if not torch.equal(part, whole[: part.shape[0]])]
    return [f"{name} with {bad} rows differs from {whole.shape[0]} rows"] if bad else []


def _linear(kernels: Kernels, shapes: Shapes, normal: Normal) -> list[str]:
    found = []
    for inner, outer in sorted(set(shapes.linear)):
        x, weight = normal(_ROWS[-1], inner), normal(inner, outer)
        whole = kernels.linear(x, weight)
        parts = [kernels.linear(x[:rows].contiguous(), weight) for rows in _ROWS[:-1]]
        found += _differing(f"linear {inner} x {outer}", whole, parts)
    return found


def _row_by_row(kernels: Kernels, shapes: Shapes, normal: Normal) -> list[str]:
    """Operations that take each row for itself."""
    groups, inner, outer = shapes.group_linear
    norm, bias = normal(shapes.hidden), normal(shapes.routed)
    group_weight = normal(groups, inner, outer)
    rotation = torch.polar(torch.ones(_ROWS[-1], 4), normal(_ROWS[-1], 4))
    whole: dict[str, tuple[torch.Tensor, Normal]] = {
        "rms_norm": (
            normal(_ROWS[-1], shapes.hidden),
            lambda x: kernels.rms_norm(x, norm, 1e-6),
        ),
        "rms_norm of heads": (
            normal(_ROWS[-1], shapes.heads, shapes.head_dim),
            lambda x: kernels.rms_norm(x, None, 1e-6),
        ),
        "apply_rope": (
            normal(_ROWS[-1], shapes.heads, shapes.head_dim),
            lambda x: kernels.apply_rope(x, rotation[: len(x)]),
        ),
        "group_linear": (
            normal(_ROWS[-1], groups, inner),
            lambda x: kernels.group_linear(x, group_weight),
        ),
        "route": (
            normal(_ROWS[-1], shapes.routed),
            lambda x: kernels.route(x, bias, None, top_k=shapes.top_k, scale=1.5)[1],
        ),
        "swiglu": (
            normal(_ROWS[-1], 2 * shapes.expert_width),
            lambda x: kernels.swiglu(x, None, 10.0),
        ),
        "compress": (
            normal(_ROWS[-1], 4, 2 * shapes.head_dim),
            lambda x: kernels.compress(x, width=shapes.head_dim, overlap=False, first=None),
        ),
    }
    found = []
    for name, (x, run) in whole.items():
        parts = [run(x[:rows].clone()) for rows in _ROWS[:-1]]
        found += _differing(name, run(x.clone()), parts)
    return found


def _streams(kernels: Kernels, shapes: Shapes, normal: Normal) -> list[str]:
    n, d = shapes.streams, shapes.hidden
    streams = normal(_ROWS[-1], n, d)
    columns = (2 + n) * n
    projection, base, scale = normal(n * d, columns), normal(columns), normal(columns)

    def run(rows: int) -> torch.Tensor:
        part = streams[:rows].contiguous()
        pre, post, comb = kernels.hc_pre(
            part, projection, scale, base, rms_eps=1e-6, hc_eps=1e-6, sinkhorn_iters=4
        )
        mixed = kernels.hc_mix(part, pre)
        return kernels.hc_post(mixed, part, post, comb).flatten(1)

    return _differing("hyper-connections", run(_ROWS[-1]), map(run, _ROWS[:-1]))


def _experts(kernels: Kernels, shapes: Shapes, normal: Normal) -> list[str]:
    count = shapes.experts
    gate_up = normal(count, shapes.hidden, 2 * shapes.expert_width)
    down = normal(count, shapes.expert_width, shapes.hidden)
    rows, weight = normal(6 * count, shapes.hidden), normal(6 * count).abs()

    def run(slots: torch.Tensor) -> torch.Tensor:
        order = slots.argsort(stable=True)
        outputs = kernels.grouped_experts(
            rows[order], weight[order], slots[order], gate_up, down, 10.0, 4
        )
        back = torch.empty_like(outputs)
        back[order] = outputs
        return back

    found = []
    # Row 0 always goes to expert 0; where its neighbours go must not matter.
    alone = (torch.arange(6 * count) % max(count - 1, 1) + 1) % count
    alone[0] = 0
    crowded = torch.zeros(6 * count, dtype=torch.int64)
    spread = torch.arange(6 * count) % count
    results = [run(slots)[0] for slots in (alone, crowded, spread)]
    if not all(torch.equal(results[0], other) for other in results[1:]):
        found.append("experts: a row depends on the other rows of its expert")
    return found


def _attention(kernels: Kernels, shapes: Shapes, normal: Normal) -> list[str]:
    found = []
    most = 640
    source = normal(most + SINK_COLUMNS, shapes.head_dim)
    source[:SINK_COLUMNS] = 0.0
    query = normal(_ROWS[1], shapes.heads, shapes.head_dim)
    sink = torch.zeros(shapes.heads, most)
    sink[:, 0] = normal(shapes.heads)
    for used in (SINK_COLUMNS, 80, 250, 400, 640):
        columns = torch.arange(most)
        mask = torch.zeros(_ROWS[1], most).masked_fill_(columns >= used, NEG_INF)
        rows = (columns % (most + SINK_COLUMNS)).repeat(_ROWS[1], 1)
        whole = kernels.sparse_attention(query, source, rows, mask, sink, 0.125).flatten(1)
        short = -(-used // SINK_COLUMNS) * SINK_COLUMNS
        parts = [
            kernels.sparse_attention(
                query[:count].contiguous(),
                source,
                rows[:count, :short].contiguous(),
                mask[:count, :short].contiguous(),
                sink,
                0.125,
            ).flatten(1)
            for count in (_ROWS[0], _ROWS[1])
        ]
        found += _differing(f"attention over {used} keys", whole, parts)
    return found


def _index(kernels: Kernels, shapes: Shapes, normal: Normal) -> list[str]:
    most = 8 * KEY_TILE
    rows = 16
    query = normal(rows, shapes.index_heads, shapes.index_width)
    weight = normal(rows, shapes.index_heads)
    keys = normal(1, most, shapes.index_width)
    visible = torch.full((rows,), KEY_TILE)
    whole = kernels.index_logits(query, weight, keys, ((0, 0, rows),), visible)
    chunk = kernels.index_logits(query, weight, keys[:, :KEY_TILE], ((0, 0, rows),), visible)
    single = kernels.index_logits(
        query,
        weight,
        keys[:, : 2 * KEY_TILE].expand(rows, -1, -1).contiguous(),
        tuple((i, i, i + 1) for i in range(rows)),
        visible,
    )
    return [
        f"index scores: {name} differs"
        for name, part in (("a chunk", chunk), ("a decode step", single))
        if not torch.equal(part[:, :KEY_TILE], whole[:, :KEY_TILE])
    ]
