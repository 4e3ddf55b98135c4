"""The ways rows get from the attention to the experts and back.

Each way comes twice: from finished rows, for a layer that does something between attention and
experts, and from the attention's addends. Path A gathers all rows to all ranks, runs each rank's
share of the experts on all of them and reduces. Path B cuts replicated rows, so that each row is
dispatched once. Direct is path B without attention TP, plain is path A without data parallelism.
Which one is a function of widths and backend alone.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from engine.parallel.rows.modes import AgreedRows, Combine
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


def gather_and_reduce(
    own: TaggedRows,
    attn_tp: RowGroup,
    tp: RowGroup,
    experts: Experts,
    *,
    agreed: AgreedRows,
    combine: Combine,
    shared: SharedExpert | None = None,
) -> TaggedRows:
    """Path A: OWN REP(attn_tp) to OWN REP(attn_tp) through experts all ranks have a share of.

    Args:
        own: finished rows of this rank's attention group.
        attn_tp, tp: the group that shares heads, and the whole domain.
        experts: this rank's share: all rows [rows, H] to addends [rows, H]; padding rows are
            dropped by `take_own` or `trim`, whatever the share makes of them.
        agreed: of all attention groups.
        combine: agreed: how the sum is taken, exactly once.
        shared: the shared expert, equal on all ranks; added once, after the sum.
    """
    part = own.rows.part
    assert part is not None
    everything = gather_replicated(own, attn_tp, tp, agreed.padding)
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


def cut_and_join(
    own: TaggedRows, inner: RowGroup, experts: Experts, *, shared: SharedExpert | None = None
) -> TaggedRows:
    """Path B: OWN REP(inner) to OWN REP(inner), each row dispatched by one rank of the group.

    Args:
        own: finished rows, equal on all ranks of the group.
        inner: the group that holds the same rows.
        experts: router, dispatch, experts and combine of the chunk: finished rows. Called on every
            rank, also for zero rows.
        shared: the shared expert; runs on the chunk, so nothing is computed twice.
    """
    rows = cut(own, inner) if inner.size > 1 else own
    finished = experts(rows.values, rows.rows)
    if shared is not None:
        finished = finished + shared(rows.values)
    result = rows.with_values(finished)
    return result if inner.size == 1 else join(result, inner)


def share_and_sum(
    own: TaggedRows, tp: RowGroup, experts: Experts, *, shared: SharedExpert | None = None
) -> TaggedRows:
    """Plain: OWN REP(tp) to OWN REP(tp) when the whole domain is one attention group: one sum.

    Args:
        own: finished rows, equal on all ranks.
        tp: the domain.
        experts: this rank's share of all rows: addends.
        shared: the shared expert, equal on all ranks; added once, after the sum.
    """
    addends = own.with_values(experts(own.values, own.rows), **{tp.name: ValueState.PART})
    result = reduce_own(addends, tp)
    return result if shared is None else add_replicated(result, shared(own.values), tp)


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
    """`gather_and_reduce` from OWN PART(attn_tp): an addend over ATTN_TP."""
    own = reduce_own(attention, attn_tp)
    agreed = AgreedRows(counts=own.rows.counts, has_extend=has_extend)
    return gather_and_reduce(
        own, attn_tp, tp, experts, agreed=agreed, combine=combine, shared=shared
    )


def path_b(
    attention: TaggedRows,
    attn_tp: RowGroup,
    experts: Experts,
    *,
    shared: SharedExpert | None = None,
) -> TaggedRows:
    """`cut_and_join` from OWN PART(attn_tp): an addend over ATTN_TP."""
    return cut_and_join(reduce_own(attention, attn_tp), attn_tp, experts, shared=shared)


def path_plain(
    attention: TaggedRows, tp: RowGroup, experts: Experts, *, shared: SharedExpert | None = None
) -> TaggedRows:
    """`share_and_sum` from OWN PART(tp): an addend over TP."""
    return share_and_sum(reduce_own(attention, tp), tp, experts, shared=shared)
