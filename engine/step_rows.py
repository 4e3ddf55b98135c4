"""The rows of a step: those of the whole step, and those this rank computes.

With context parallelism all ranks of an engine get the same plan and hold the same KV. What
describes writes to KV stays on the rows of the whole step; what is computed per row is cut by the
zigzag split (`engine.parallel.rows.zigzag`). A rank's rows stand in batch order without the holes
of the split: its real rows come first and padding stands at the tail, so padding never stands
between rows that are routed. All ranks of the group have equally many rows.

Which way a step is cut follows from the plan alone, so all ranks of the group find the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.parallel.rows.zigzag import ZigzagSplit, shortest_split_of, split_rows
from engine.plan import StepPlan

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRows:
    """All rows of a step, sequence by sequence, without padding.

    Args:
        lengths, starts, slots: [sequences] new tokens, first position, state slot.
        begins: [sequences] first row; ends: [sequences] tokens in KV after the step.
        stored, window_starts: [sequences] as in `SequenceStep`; 0 where nothing is replayed.
        token_ids, positions, sequence_of_row: [T].
        direct: Whether every sequence has one token.
    """

    lengths: IntArray
    starts: IntArray
    slots: IntArray
    begins: IntArray
    ends: IntArray
    stored: IntArray
    window_starts: IntArray
    token_ids: IntArray
    positions: IntArray
    sequence_of_row: IntArray
    direct: bool

    @classmethod
    def of(cls, plan: StepPlan) -> StepRows:
        """Reads a plan."""
        sequences = plan.sequences
        lengths = np.array([s.num_tokens for s in sequences], dtype=np.int64)
        starts = np.array([s.start for s in sequences], dtype=np.int64)
        begins = np.cumsum(lengths) - lengths
        token_ids = np.empty(0, dtype=np.int64)
        if sequences:
            token_ids = np.concatenate([s.token_ids for s in sequences])
        return cls(
            lengths=lengths,
            starts=starts,
            slots=np.array([s.state_slot for s in sequences], dtype=np.int64),
            begins=begins,
            ends=starts + lengths,
            stored=np.array([s.stored_tokens for s in sequences], dtype=np.int64),
            window_starts=np.array([s.window_start for s in sequences], dtype=np.int64),
            token_ids=token_ids,
            positions=np.arange(len(token_ids)) + np.repeat(starts - begins, lengths),
            sequence_of_row=np.repeat(np.arange(len(sequences)), lengths),
            direct=bool((lengths == 1).all()),
        )

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.positions)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankRows:
    """The rows of a step that one rank computes.

    Args:
        num_rows: with padding at the tail; equal on all ranks of the group.
        rows: [num_tokens] rows of the step, ascending.
        rank: of the group, 0 when alone.
        reverse: [T] place of each row of the step in the rows of all ranks one after the other;
            None when this rank computes all rows and nothing is gathered.
    """

    num_rows: int
    rows: IntArray
    rank: int = 0
    reverse: IntArray | None = None

    @property
    def num_tokens(self) -> int:
        """Rows that are tokens."""
        return len(self.rows)

    def take(self, values: IntArray) -> IntArray:
        """[T] values of the step to [num_rows] of this rank; padding is 0."""
        taken = np.zeros(self.num_rows, dtype=np.int64)
        taken[: len(self.rows)] = values[self.rows]
        return taken

    def spans(self, step: StepRows) -> tuple[tuple[int, int, int], ...]:
        """(sequence, first row, end row) of every sequence of the step with rows here."""
        owners, begins = np.arange(len(step.lengths)), step.begins
        ends = begins + step.lengths
        if self.reverse is not None:
            owners, begins, counts = np.unique(
                step.sequence_of_row[self.rows], return_index=True, return_counts=True
            )
            ends = begins + counts
        return tuple(zip(owners.tolist(), begins.tolist(), ends.tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledRows:
    """Where the rows stand whose logits are wanted.

    Args:
        rows: [padded] rows of this rank; equally many on all ranks, padding names row 0.
        reverse: [samples, padded] place of each sample in those of all ranks one after the other,
            padding names place 0; None when this rank has them all, in order.
    """

    rows: IntArray
    reverse: IntArray | None = None


def all_rows(step: StepRows, multiple: int) -> RankRows:
    """Every row of the step, padded to a multiple."""
    return RankRows(
        num_rows=max(round_up(step.num_tokens, multiple), multiple), rows=np.arange(step.num_tokens)
    )


def cut_rows(step: StepRows, cp: int, rank: int, multiple: int) -> RankRows:
    """The rows of one of `cp` ranks.

    Short sequences stay whole where that makes no rank's rows more: cutting them costs padding,
    but one that is alone in its step would keep one rank busy and the others idle.

    Args:
        step: all rows.
        cp: ranks that share them.
        rank: whose rows are wanted.
        multiple: row counts are multiples of it.
    """
    lengths = step.lengths.tolist()
    shortest = shortest_split_of(cp)
    splits = [split_rows(lengths, cp, shortest_split=shortest)]
    if min(lengths, default=shortest) < shortest:
        splits.append(split_rows(lengths, cp))
    # Of equal ones the first: whole sequences.
    split = min(splits, key=lambda found: _num_rows(found, multiple))
    num_rows = _num_rows(split, multiple)
    reverse = np.empty(step.num_tokens, dtype=np.int64)
    parts = [np.sort(slots[slots >= 0]) for slots in split.mirror]
    for owner, rows in enumerate(parts):
        reverse[rows] = owner * num_rows + np.arange(len(rows))
    return RankRows(num_rows=num_rows, rows=parts[rank], rank=rank, reverse=reverse)


def sampled_rows(samples: IntArray, rows: RankRows, multiple: int) -> SampledRows:
    """Finds the samples of a step among the rows of a rank.

    Args:
        samples: [samples] rows of the step, ascending.
        rows: of this rank.
        multiple: lists are padded to it.
    """
    if rows.reverse is None:
        return SampledRows(rows=_padded(samples, multiple))
    owners, places = np.divmod(rows.reverse[samples], rows.num_rows)
    counts = np.bincount(owners, minlength=1)
    width = round_up(int(counts.max()), multiple)
    # Ranks one after the other, and on each rank its samples in order.
    order = np.argsort(owners, kind="stable")
    among_own = np.empty(len(samples), dtype=np.int64)
    among_own[order] = np.arange(len(samples)) - (np.cumsum(counts) - counts)[owners[order]]
    own = np.zeros(width, dtype=np.int64)
    own[among_own[owners == rows.rank]] = places[owners == rows.rank]
    return SampledRows(rows=own, reverse=_padded(owners * width + among_own, multiple))


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below `value`."""
    return -(-value // multiple) * multiple


def _num_rows(split: ZigzagSplit, multiple: int) -> int:
    most = int((split.mirror >= 0).sum(1).max())
    return max(round_up(most, multiple), multiple)


def _padded(values: IntArray, multiple: int) -> IntArray:
    out = np.zeros(round_up(len(values), multiple), dtype=np.int64)
    out[: len(values)] = values
    return out
