"""Which rows of a step meet which experts: made once per step from agreed values, read by layers.

Everything that chooses a collective of the experts is decided here: how rows are gathered, how
results are summed, where rows are cut. Layers only follow, so that no two of them can disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.parallel.rank_groups import RankGroups
from engine.parallel.rows import RowSet, TaggedRows, ValueState
from engine.parallel.rows.modes import AgreedRows, Combine, Path, choose_combine
from engine.parallel.rows.transitions import RowGroup, cut, gather_replicated


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertRows:
    """The rows of one step, as the expert layers need them.

    Args:
        num_tokens: rows of this rank's attention group, without padding.
        own: the same as a row set.
        brought: on path A, the rows the group announced, of which `num_tokens` are there; the
            others are holes. Elsewhere the same as `own`.
        token_ids: [rows] int64 of the rows this rank routes, padded with 0 at the tail: its own,
            its chunk of them, or those of all groups.
        is_real: [rows] bool, where padding or holes stand between gathered rows; None if nowhere.
        inner: the ranks that hold the same rows, over which they are cut before they are
            dispatched; None where rows are dispatched as they stand here, or not at all.
        agreed, combine: of path A.
    """

    num_tokens: int
    own: RowSet
    brought: RowSet
    token_ids: Tensor
    is_real: Tensor | None = None
    inner: RowGroup | None = None
    agreed: AgreedRows | None = None
    combine: Combine = Combine.ALL_REDUCE


def expert_rows(
    token_ids: Tensor,
    num_tokens: int,
    groups: RankGroups,
    agreed: AgreedRows | None,
    *,
    row_multiple: int,
    is_cut: bool = False,
) -> ExpertRows:
    """Prepares a step; on path A a collective of the domain, also without rows.

    Context ranks that all have the rows of a step cut them as path B does, so that each row is
    dispatched once.

    Args:
        token_ids: [rows] int64 of this rank's rows, padding at the tail.
        num_tokens: how many of them are tokens.
        groups: of this rank.
        agreed: rows all attention groups announced; path A cannot do without.
        row_multiple: row counts are multiples of it.
        is_cut: each context rank has its own rows of the step.

    Raises:
        ValueError: path A without agreed rows, or with fewer than this rank has.
    """
    if groups.path is Path.A:
        return _of_all_groups(token_ids[:num_tokens], groups, agreed, row_multiple)
    own = RowSet.own((num_tokens,), 0)
    inner = None
    if groups.path is Path.B:
        inner = groups.attn_tp
    elif groups.path is Path.DIRECT and groups.cp.size > 1 and not is_cut:
        inner = groups.cp
    if inner is not None:
        ids = TaggedRows(
            values=token_ids[:num_tokens], rows=own, states={inner.name: ValueState.REP}
        )
        token_ids = pad_rows(cut(ids, inner).values, row_multiple)
    return ExpertRows(num_tokens=num_tokens, own=own, brought=own, token_ids=token_ids, inner=inner)


def pad_rows(rows: Tensor, multiple: int) -> Tensor:
    """Appends zero rows up to a multiple: [T, ...] to [rows, ...]."""
    return extended(rows, len(rows) + -len(rows) % multiple)


def extended(rows: Tensor, num_rows: int) -> Tensor:
    """Appends zero rows up to a number: [T, ...] to [num_rows, ...]."""
    if len(rows) == num_rows:
        return rows
    return torch.cat([rows, rows.new_zeros((num_rows - len(rows), *rows.shape[1:]))])


def _of_all_groups(
    token_ids: Tensor, groups: RankGroups, agreed: AgreedRows | None, row_multiple: int
) -> ExpertRows:
    attn_tp, domain = groups.attn_tp, groups.domain
    part, num_groups = domain.rank // attn_tp.size, domain.size // attn_tp.size
    if agreed is None:
        raise ValueError(
            f"path A gathers the rows of {num_groups} attention groups: give their agreed counts"
        )
    if len(agreed.counts) != num_groups or agreed.counts[part] < len(token_ids):
        raise ValueError(
            f"agreed counts {list(agreed.counts)} do not fit {num_groups} attention groups of "
            f"which number {part} has {len(token_ids)} rows: announce rows in the step vote"
        )
    brought = RowSet.own(agreed.counts, part)
    # Ids travel as one more than they are, so that what is zero is no token: padding, and rows that
    # were announced but fell away when their state was moved in.
    ids = TaggedRows(
        values=extended(token_ids + 1, brought.num_rows),
        rows=brought,
        states={attn_tp.name: ValueState.REP},
    )
    found = gather_replicated(ids, attn_tp, domain, agreed.padding).values
    is_real = found > 0
    return ExpertRows(
        num_tokens=len(token_ids),
        own=RowSet.own((len(token_ids),), 0),
        brought=brought,
        token_ids=pad_rows((found - 1).clamp_min(0), row_multiple),
        is_real=None if bool(is_real.all()) else pad_rows(is_real, row_multiple),
        agreed=agreed,
        combine=choose_combine(agreed.padding, attn_tp=attn_tp.size),
    )
