"""The legal moves between row states, each with its collective; there are no others.

Every rank of a group calls a move with its own tensor, in the same order. What a move wants and
gives is a row of `MOVES`; a tensor with other tags is refused before anything is sent, so that a
sum over replicated values is an error and not a wrong answer.

Collectives come through the `RowGroup` port. Zero rows are legal everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from engine.parallel.rows.modes import PaddingMode, RowGather, choose_gather
from engine.parallel.rows.splits import Split
from engine.parallel.rows.tags import RowRule, RowSet, TagError, TaggedRows, ValueState
from engine.parallel.rows.zigzag import ZigzagSplit

OWN, CHUNK, GLOBAL, MIRROR = RowRule.OWN, RowRule.CHUNK, RowRule.GLOBAL, RowRule.MIRROR
REP, PART, UNIQ = ValueState.REP, ValueState.PART, ValueState.UNIQ


class Gather(Protocol):
    """A gather on its way."""

    def wait(self) -> Tensor:
        """Members' rows one after the other, as of `all_gather`; once.

        Raises:
            GroupError: a member is late or lost.
        """
        ...


@dataclass(frozen=True, slots=True)
class Gathered:
    """A gather that is over when it is issued: of transports that do not go on by themselves."""

    rows: Tensor

    def wait(self) -> Tensor:
        """The rows."""
        return self.rows


class RowGroup(Protocol):
    """Collectives of one group on rows. One thread per rank; all ranks call in the same order.

    Sums run in rank order, so results do not depend on sizes or timing. Rows are of any number
    type, equal on all members; results are the caller's.
    """

    @property
    def name(self) -> str:
        """Which group: states are tagged with it."""
        ...

    @property
    def rank(self) -> int:
        """Place of this rank in the group."""
        ...

    @property
    def size(self) -> int:
        """Ranks of the group."""
        ...

    def all_reduce(self, rows: Tensor) -> Tensor:
        """Sum of the members' rows, which have equal shapes."""
        ...

    def all_gather(self, rows: Tensor) -> Tensor:
        """Members' rows one after the other; every member brings equally many."""
        ...

    def all_gather_sized(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """Members' rows one after the other; member r brings `sizes[r]` rows, agreed before."""
        ...

    def start_all_gather(self, rows: Tensor) -> Gather:
        """Issues an `all_gather` and goes on; to be awaited late, so that work hides the way.

        The rows may be overwritten as soon as it returns. Other collectives of the group may be
        called before `wait`, and gathers may be awaited in any order.
        """
        ...

    def reduce_scatter(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """This member's part of the sum; part r has `sizes[r]` rows."""
        ...


def bytes_per_row(rows: Tensor, sizes: Sequence[int], rank: int) -> int:
    """Bytes of one row, of a member that brings its part of rows of agreed sizes.

    Raises:
        ValueError: it brings another number of rows than was agreed.
    """
    if len(rows) != sizes[rank]:
        raise ValueError(
            f"{len(rows)} rows are not the {sizes[rank]} of member {rank} in {list(sizes)}: agree "
            f"on sizes before the gather"
        )
    return rows.element_size() * math.prod(rows.shape[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What a move wants, gives and costs."""

    source: RowRule
    wants: ValueState
    target: RowRule
    gives: ValueState
    collectives: tuple[str, ...]


MOVES: Final = {
    "reduce_own": Move(source=OWN, wants=PART, target=OWN, gives=REP, collectives=("all_reduce",)),
    "cut": Move(source=OWN, wants=REP, target=CHUNK, gives=UNIQ, collectives=()),
    "join": Move(source=CHUNK, wants=UNIQ, target=OWN, gives=REP, collectives=("all_gather",)),
    "gather_replicated": Move(
        source=OWN,
        wants=REP,
        target=GLOBAL,
        gives=REP,
        collectives=("sized_gather | all_reduce | all_gather | reduce_scatter + all_gather",),
    ),
    "gather_partial": Move(
        source=OWN, wants=PART, target=GLOBAL, gives=REP, collectives=("all_reduce",)
    ),
    "reduce_global": Move(
        source=GLOBAL, wants=PART, target=GLOBAL, gives=REP, collectives=("all_reduce",)
    ),
    "scatter_global": Move(
        source=GLOBAL,
        wants=PART,
        target=OWN,
        gives=REP,
        collectives=("reduce_scatter", "all_gather if attn_tp > 1"),
    ),
    "take_own": Move(source=GLOBAL, wants=REP, target=OWN, gives=REP, collectives=()),
    "mirror": Move(source=OWN, wants=REP, target=MIRROR, gives=UNIQ, collectives=()),
    "restore": Move(source=MIRROR, wants=UNIQ, target=OWN, gives=REP, collectives=("all_gather",)),
}


def reduce_own(rows: TaggedRows, attn_tp: RowGroup) -> TaggedRows:
    """OWN PART to OWN REP: the attention output, over ATTN_TP only.

    Over the whole domain it would add up rows of different requests.
    """
    _check("reduce_own", rows, attn_tp)
    # Alone in its group, an addend is the value.
    summed = attn_tp.all_reduce(rows.values) if attn_tp.size > 1 else rows.values
    return rows.with_values(summed, **{attn_tp.name: REP})


def cut(rows: TaggedRows, inner: RowGroup) -> TaggedRows:
    """OWN REP to CHUNK UNIQ: this rank's slice; no traffic."""
    _check("cut", rows, inner)
    split = Split(num_rows=rows.rows.num_rows, num_ranks=inner.size)
    return TaggedRows(
        values=rows.values[split.slice_of(inner.rank)],
        rows=RowSet(
            rule=CHUNK, counts=split.sizes, slots=split.sizes, part=inner.rank, parent=rows.rows
        ),
        states={**rows.states, inner.name: UNIQ},
    )


def join(rows: TaggedRows, inner: RowGroup) -> TaggedRows:
    """CHUNK UNIQ to OWN REP: gathers equal padded chunks and drops the padding."""
    _check("join", rows, inner)
    parent = rows.rows.parent
    if parent is None:
        raise TagError("join wants chunks of known rows: cut them with `cut`")
    values = _gather_chunks(rows.values, rows.rows.slots, inner)
    return TaggedRows(values=values, rows=parent, states={**rows.states, inner.name: REP})


def gather_replicated(
    rows: TaggedRows, attn_tp: RowGroup, tp: RowGroup, mode: PaddingMode
) -> TaggedRows:
    """OWN REP to GLOBAL REP: exactly one copy per attention group contributes.

    SUM: rows of their own sizes, gathered where each rank is an attention group, else summed into a
    buffer that is zero where others write. MAX: rows padded to the largest group are gathered,
    slices of them where copies exist. That works on a padded copy: the input is not overwritten.
    """
    _check("gather_replicated", rows, attn_tp)
    contributes = attn_tp.rank == 0
    counts = rows.rows.counts
    if choose_gather(mode, attn_tp=attn_tp.size) is RowGather.SIZED:
        return TaggedRows(
            values=tp.all_gather_sized(rows.values, rows.rows.slots),
            rows=RowSet(rule=GLOBAL, counts=counts, slots=rows.rows.slots),
            states={attn_tp.name: REP, tp.name: REP},
        )
    if mode is PaddingMode.SUM:
        return _gather_sum(rows, attn_tp, tp, contributes=contributes)
    slots = -(-max(counts) // attn_tp.size) * attn_tp.size
    values = _padded(rows.values, slots)
    if attn_tp.size > 1:
        # Turns one copy into slices: the sum of the copy and zeros.
        if not contributes:
            values = torch.zeros_like(values)
        values = attn_tp.reduce_scatter(values, [slots // attn_tp.size] * attn_tp.size)
    return TaggedRows(
        values=tp.all_gather(values),
        rows=RowSet(rule=GLOBAL, counts=counts, slots=(slots,) * len(counts)),
        states={attn_tp.name: REP, tp.name: REP},
    )


def gather_partial(rows: TaggedRows, attn_tp: RowGroup, tp: RowGroup) -> TaggedRows:
    """OWN PART to GLOBAL REP: every rank contributes its addend; the gather is the reduction."""
    _check("gather_partial", rows, attn_tp)
    return _gather_sum(rows, attn_tp, tp, contributes=True)


def reduce_global(rows: TaggedRows, tp: RowGroup) -> TaggedRows:
    """GLOBAL PART to GLOBAL REP: the sum over the expert axes."""
    _check("reduce_global", rows, tp)
    return rows.with_values(tp.all_reduce(rows.values), **{tp.name: REP})


def scatter_global(rows: TaggedRows, attn_tp: RowGroup, tp: RowGroup, part: int) -> TaggedRows:
    """GLOBAL PART to OWN REP: reduces and keeps the rows of attention group `part`.

    Equal padded groups are scattered in equal slices, others in slices of their own sizes.
    """
    _check("scatter_global", rows, tp)
    counts, slots = rows.rows.counts, rows.rows.slots
    chunks = [
        size for group in slots for size in Split(num_rows=group, num_ranks=attn_tp.size).sizes
    ]
    values = tp.reduce_scatter(rows.values, chunks)
    own = chunks[part * attn_tp.size : (part + 1) * attn_tp.size]
    if attn_tp.size > 1:
        values = _gather_chunks(values, own, attn_tp)
    return TaggedRows(
        values=values,
        rows=RowSet(rule=OWN, counts=counts, slots=slots, part=part),
        states={attn_tp.name: REP, tp.name: UNIQ},
    )


def take_own(rows: TaggedRows, attn_tp: RowGroup, tp: RowGroup, part: int) -> TaggedRows:
    """GLOBAL REP to OWN REP: the rows of attention group `part`; no traffic."""
    _check("take_own", rows, tp)
    begin = rows.rows.offsets[part]
    return TaggedRows(
        values=rows.values[begin : begin + rows.rows.slots[part]],
        rows=RowSet(rule=OWN, counts=rows.rows.counts, slots=rows.rows.slots, part=part),
        states={attn_tp.name: REP, tp.name: UNIQ},
    )


def mirror(rows: TaggedRows, cp: RowGroup, split: ZigzagSplit) -> TaggedRows:
    """OWN REP to MIRROR UNIQ: this rank's rows of a zigzag split; padding rows are zero."""
    _check("mirror", rows, cp)
    index = torch.from_numpy(split.mirror[cp.rank])
    source = rows.values
    values = source.new_zeros((split.mirror_length, *source.shape[1:]))
    real = index >= 0
    values[real] = source[index[real]]
    counts = tuple((split.mirror >= 0).sum(1).tolist())
    return TaggedRows(
        values=values,
        rows=RowSet(
            rule=MIRROR,
            counts=counts,
            slots=(split.mirror_length,) * cp.size,
            part=cp.rank,
            parent=rows.rows,
        ),
        states={**rows.states, cp.name: UNIQ},
    )


def restore(rows: TaggedRows, cp: RowGroup, split: ZigzagSplit) -> TaggedRows:
    """MIRROR UNIQ to OWN REP: gathers all slots and puts the rows back in order."""
    _check("restore", rows, cp)
    parent = rows.rows.parent
    if parent is None:
        raise TagError("restore wants mirrored rows of a known step: make them with `mirror`")
    gathered = cp.all_gather(rows.values)
    return TaggedRows(
        values=gathered[torch.from_numpy(split.reverse)],
        rows=parent,
        states={**rows.states, cp.name: REP},
    )


def trim(rows: TaggedRows) -> TaggedRows:
    """Drops the padding at the tail of one part."""
    part = rows.rows.part
    if part is None:
        raise TagError("trim wants one part: padding stands at the tail of each")
    counts = rows.rows.counts
    return TaggedRows(
        values=rows.values[: counts[part]],
        rows=RowSet(rule=rows.rows.rule, counts=counts, slots=counts, part=part),
        states=rows.states,
    )


def add_replicated(rows: TaggedRows, addend: Tensor, *groups: RowGroup) -> TaggedRows:
    """Adds what every rank computed alike (shared expert, bias, residual): after the reduction.

    Raises:
        TagError: the values are still addends, so the sum would count it once per rank.
    """
    for group in groups:
        if rows.states.get(group.name) is PART:
            rows.require(group.name, REP, "add_replicated")
    return rows.with_values(rows.values + addend)


def finished(rows: TaggedRows, attn_tp: RowGroup, *others: RowGroup) -> Tensor:
    """The values, if they may enter the residual stream: equal over ATTN_TP, addends nowhere.

    Raises:
        TagError: a reduction was left out, so that replicas would differ.
    """
    rows.require(attn_tp.name, REP, "the residual stream")
    for group in others:
        if rows.states.get(group.name) is PART:
            rows.require(group.name, REP, "the residual stream")
    return rows.values


def require_replicated(rows: TaggedRows, group: RowGroup) -> None:
    """Compares the values over the group; for debugging, it is a collective of its own.

    Raises:
        TagError: names the first rank that differs from rank 0.
    """
    copies = group.all_gather(rows.values.unsqueeze(0))
    for rank in range(1, group.size):
        if not torch.equal(copies[rank], copies[0]):
            raise TagError(
                f"rows tagged replicated over {group.name} differ: rank {rank} has other values "
                f"than rank 0"
            )


def _check(name: str, rows: TaggedRows, group: RowGroup) -> None:
    move = MOVES[name]
    if rows.rows.rule is not move.source:
        raise TagError(
            f"{name} wants {move.source.value} rows, these are {rows.rows.rule.value} rows"
        )
    rows.require(group.name, move.wants, name)


def _gather_sum(
    rows: TaggedRows, attn_tp: RowGroup, tp: RowGroup, *, contributes: bool
) -> TaggedRows:
    counts, part = rows.rows.counts, rows.rows.part
    assert part is not None
    target = RowSet(rule=GLOBAL, counts=counts, slots=counts)
    buffer = rows.values.new_zeros((target.num_rows, *rows.values.shape[1:]))
    if contributes:
        begin = target.offsets[part]
        buffer[begin : begin + counts[part]] = rows.values
    return TaggedRows(
        values=tp.all_reduce(buffer), rows=target, states={attn_tp.name: REP, tp.name: REP}
    )


def _gather_chunks(values: Tensor, sizes: Sequence[int], group: RowGroup) -> Tensor:
    """Chunks of all members, in order, without the padding they travel with."""
    width = max(sizes)
    gathered = group.all_gather(_padded(values, width))
    if len(set(sizes)) == 1:
        return gathered
    return torch.cat([gathered[r * width : r * width + size] for r, size in enumerate(sizes)])


def _padded(values: Tensor, num_rows: int) -> Tensor:
    if len(values) == num_rows:
        return values
    padded = values.new_zeros((num_rows, *values.shape[1:]))
    padded[: len(values)] = values
    return padded
