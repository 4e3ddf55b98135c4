"""Attention over row lists against a plain softmax in float64."""

import math

import pytest
import torch

from disagg_kernels import select_kernels
from disagg_kernels.attention import SINK_COLUMNS
from tests.fakes.tensors import distance, normal

OPS = select_kernels("cpu")
NEG_INF = float("-inf")


def naive(
    query: torch.Tensor,
    source: torch.Tensor,
    rows: list[list[int]],
    sink: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Softmax over the listed rows and the sink, whose value is zero."""
    out = torch.zeros(query.shape, dtype=torch.float64)
    for token, listed in enumerate(rows):
        keys = source[listed].double()
        for head in range(query.shape[1]):
            scores = [float(v) * scale for v in keys @ query[token, head].double()]
            most = max([*scores, float(sink[head])])
            weights = [math.exp(score - most) for score in scores]
            total = sum(weights) + math.exp(float(sink[head]) - most)
            for weight, key in zip(weights, keys, strict=True):
                out[token, head] += weight / total * key
    return out


def sinks(heads: int, columns: int) -> torch.Tensor:
    """The sinks of some heads in the first column, as the operation takes them."""
    sink = torch.zeros(heads, columns)
    sink[:, 0] = normal(heads, seed=2)
    return sink


def lists(used: list[list[int]], columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row lists and masks: the sink's columns, the used rows, masked padding."""
    rows = torch.zeros(len(used), columns, dtype=torch.int64)
    mask = torch.full((len(used), columns), NEG_INF)
    mask[:, 0] = 0.0
    for token, listed in enumerate(used):
        rows[token, SINK_COLUMNS : SINK_COLUMNS + len(listed)] = torch.tensor(
            listed, dtype=torch.int64
        )
        mask[token, SINK_COLUMNS : SINK_COLUMNS + len(listed)] = 0.0
    return rows, mask


@pytest.mark.parametrize("columns", [32, 256, 272, 640])
def test_attention_is_a_softmax_with_a_sink(columns: int) -> None:
    tokens, heads, width = 4, 3, 8
    source = normal(columns + 1, width)
    source[0] = 0.0
    query, sink = normal(tokens, heads, width, seed=1), sinks(heads, columns)
    most = columns - SINK_COLUMNS
    used = [list(range(1, 1 + count)) for count in (0, 1, most // 2, most)]
    rows, mask = lists(used, columns)
    found = OPS.sparse_attention(query, source, rows, mask, sink, 0.3)
    assert distance(found, naive(query, source, used, sink[:, 0], 0.3)) < 1e-5


def test_without_keys_the_sink_takes_all() -> None:
    rows, mask = lists([[], []], 32)
    source = normal(9, 8)
    source[0] = 0.0
    found = OPS.sparse_attention(normal(2, 3, 8), source, rows, mask, sinks(3, 32), 0.3)
    assert not found.any()


def test_more_masked_columns_change_no_bit() -> None:
    source = normal(400, 8)
    source[0] = 0.0
    query, sink = normal(8, 3, 8, seed=1), sinks(3, 320)
    used = [list(range(1, 2 + token)) for token in range(8)]
    whole = OPS.sparse_attention(query, source, *lists(used, 32), sink, 0.3)
    for columns in (48, 256, 320):
        wider = OPS.sparse_attention(query, source, *lists(used, columns), sink, 0.3)
        assert torch.equal(wider, whole)


def test_rows_of_padding_columns_do_not_matter() -> None:
    source = normal(40, 8)
    source[0] = 0.0
    query, sink = normal(2, 3, 8, seed=1), sinks(3, 48)
    rows, mask = lists([[3, 4], [5]], 48)
    other = torch.where((mask == NEG_INF) & (torch.arange(48) >= SINK_COLUMNS), 39, rows)
    one = OPS.sparse_attention(query, source, rows, mask, sink, 0.3)
    assert torch.equal(OPS.sparse_attention(query, source, other, mask, sink, 0.3), one)


def test_no_rows_are_legal() -> None:
    rows, mask = torch.empty(0, 32, dtype=torch.int64), torch.empty(0, 32)
    found = OPS.sparse_attention(normal(0, 3, 8), normal(9, 8), rows, mask, sinks(3, 32), 0.3)
    assert found.shape == (0, 3, 8)


def test_wrong_arguments_are_named() -> None:
    query, source, sink = normal(2, 3, 8), normal(9, 8), sinks(3, 32)
    rows, mask = lists([[1], [2]], 32)
    for changed, message in (
        ({"source": normal(9, 7)}, "source: shape (9, 7), wanted [*, 8]"),
        ({"rows": rows.int()}, "rows: dtype torch.int32, wanted torch.int64"),
        ({"mask": mask[:, :16]}, "mask: shape (2, 16), wanted [2, 32]"),
        ({"sink": sinks(2, 32)}, "sink: shape (2, 32), wanted [3, *]"),
        ({"sink": sinks(3, 16)}, "sink: 16 columns, wanted at least 32"),
        ({"rows": rows[:, :24], "mask": mask[:, :24]}, "rows: 24 keys, wanted a multiple of 16"),
    ):
        arguments = {"source": source, "rows": rows, "mask": mask, "sink": sink, **changed}
        with pytest.raises(ValueError) as caught:
            OPS.sparse_attention(query, scale=0.3, **arguments)
        assert str(caught.value) == message
