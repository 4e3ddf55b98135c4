"""From the attention output to the next layer's input: the ways rows get to the experts and back.

Path A gathers all rows to all ranks, runs each rank's share of the experts on all of them and
reduces. Path B cuts replicated rows, so that each row is dispatched once. Direct is path B without
attention TP, plain is path A without data parallelism. Which one is a function of widths and
backend alone.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from engine.parallel.rows.modes import Combine, padding_mode
from engine.parallel.rows.tags import RowSet, TaggedRows, ValueState
from engine.parallel.rows.transitions import (
    RowGroup,
    add_replicated,
    cut,
    gather_replicated,
    join,
    reduce_global,
    reduce_own,
    scatter_global,
    take_own,
    trim,
)

# Rows and which rows they are, to rows of the same shape.
Experts = Callable[[Tensor, RowSet], Tensor]
SharedExpert = Callable[[Tensor], Tensor]


def path_a(
    attention: TaggedRows,
    attn_tp: RowGroup,
    tp: RowGroup,
    experts: Experts,
    *,
    has_extend: bool,
    combine: Combine,
    shared: SharedExpert | None = None,
) -> TaggedRows:
    """OWN PART(attn_tp) to OWN REP(attn_tp) through experts that every rank has a share of.

    Args:
        attention: output of the attention of this rank's group, an addend over ATTN_TP.
        attn_tp, tp: the group that shares heads, and the whole domain.
        experts: this rank's share: all rows [rows, H] to addends [rows, H]; padding rows are
            dropped by `take_own` or `trim`, whatever the share makes of them.
        has_extend: agreed: some rank prefills.
        combine: agreed: how the sum is taken, exactly once.
        shared: the shared expert, equal on all ranks; added once, after the sum.
    """
    own = reduce_own(attention, attn_tp)
    part = own.rows.part
    assert part is not None
    mode = padding_mode(own.rows.counts, has_extend=has_extend)
    everything = gather_replicated(own, attn_tp, tp, mode)
    addends = everything.with_values(
        experts(everything.values, everything.rows), **{tp.name: ValueState.PART}
    )
    if combine is Combine.ALL_REDUCE:
        result = take_own(reduce_global(addends, tp), attn_tp, tp, part)
    else:
        result = scatter_global(addends, attn_tp, tp, part)
    result = trim(result)
    if shared is not None:
        result = add_replicated(result, shared(own.values), attn_tp, tp)
    return result


def path_b(
    attention: TaggedRows,
    attn_tp: RowGroup,
    experts: Experts,
    *,
    shared: SharedExpert | None = None,
) -> TaggedRows:
    """OWN PART(attn_tp) to OWN REP(attn_tp), each row dispatched by one rank of the group.

    Args:
        attention: output of the attention of this rank's group, an addend over ATTN_TP.
        attn_tp: the group that shares heads.
        experts: router, dispatch, experts and combine of the chunk: finished rows. Called on every
            rank, also for zero rows.
        shared: the shared expert; runs on the chunk, so nothing is computed twice.
    """
    rows = reduce_own(attention, attn_tp)
    if attn_tp.size > 1:
        rows = cut(rows, attn_tp)
    finished = experts(rows.values, rows.rows)
    if shared is not None:
        finished = finished + shared(rows.values)
    result = rows.with_values(finished)
    return result if attn_tp.size == 1 else join(result, attn_tp)


def path_plain(
    attention: TaggedRows, tp: RowGroup, experts: Experts, *, shared: SharedExpert | None = None
) -> TaggedRows:
    """OWN PART(tp) to OWN REP(tp) when the whole domain is one attention group: one more sum.

    Args:
        attention: output of the attention, an addend over TP.
        tp: the domain.
        experts: this rank's share of all rows: addends.
        shared: the shared expert, equal on all ranks; added once, after the sum.
    """
    own = reduce_own(attention, tp)
    addends = own.with_values(experts(own.values, own.rows), **{tp.name: ValueState.PART})
    result = reduce_own(addends, tp)
    return result if shared is None else add_replicated(result, shared(own.values), tp)
