"""A step plan as tensors: positions, row lists, masks, and where each written row goes.

What the tensors mean is said in `engine.step_inputs`; which rows of a step a rank computes, in
`engine.step_rows`. All of it is host arithmetic on the plan, done once per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from disagg_kernels.attention import SINK_COLUMNS
from disagg_kernels.index import KEY_TILE
from engine.handoff import KvLayout
from engine.kv_pool import KvPool
from engine.model.config import LayerKind
from engine.model.rotary import RotaryTables
from engine.plan import StepKind, StepPlan
from engine.step_inputs import NEG_INF, RatioInputs, Selection, StepInputs
from engine.step_rows import IntArray, StepRows, all_rows, cut_rows, round_up, sampled_rows

_NEG_INF, _ZERO = np.float32("-inf"), np.float32(0.0)


class InputBuilder:
    """Turns plans into tensors for one pool.

    Args:
        layout, pool, rotary: of this rank.
        row_multiple: Row counts are multiples of it.
        cp, cp_rank: Ranks that share the rows of prefill steps, and which of them this is.
    """

    def __init__(
        self,
        layout: KvLayout,
        pool: KvPool,
        rotary: RotaryTables,
        *,
        row_multiple: int,
        cp: int = 1,
        cp_rank: int = 0,
    ) -> None:
        self._layout = layout
        self._pool = pool
        self._rotary = rotary
        self._row_multiple = row_multiple
        self._cp = cp
        self._cp_rank = cp_rank
        self._window = layout.config.sliding_window
        self._window_columns = round_up(self._window, SINK_COLUMNS)
        self._kinds = {layer.ratio: layer.kind for layer in layout.config.layers if layer.owns_kv}

    def cuts(self, kind: StepKind) -> bool:
        """Whether each context rank computes its own rows of such a step, not all of them."""
        return self._cp > 1 and kind is StepKind.PREFILL

    def build(self, plan: StepPlan) -> StepInputs:
        """Returns the tensors of a plan; a placeholder plan gives padding rows only."""
        step = StepRows.of(plan)
        if self.cuts(plan.kind):
            here = cut_rows(step, self._cp, self._cp_rank, self._row_multiple)
        else:
            here = all_rows(step, self._row_multiple)
        asking = np.array([sequence.sample for sequence in plan.sequences], dtype=np.bool_)
        samples = sampled_rows((step.begins + step.lengths - 1)[asking], here, self._row_multiple)
        rows = _Rows(
            num_tokens=here.num_tokens,
            positions=here.take(step.positions),
            sequence_of_row=here.take(step.sequence_of_row),
        )
        positions = torch.from_numpy(rows.positions)
        rotation_window = self._rotary.window.index_select(0, positions)
        rotation_long = self._rotary.long.index_select(0, positions)
        tables = _padded_tables([sequence.block_table for sequence in plan.sequences])
        return StepInputs(
            num_rows=here.num_rows,
            num_tokens=here.num_tokens,
            reverse=_optional(here.reverse),
            token_ids=torch.from_numpy(here.take(step.token_ids)),
            positions=positions,
            direct=step.direct,
            spans=here.spans(step),
            sequence_of_row=torch.from_numpy(rows.sequence_of_row),
            rotation_window=rotation_window,
            rotation_window_back=rotation_window.conj().resolve_conj(),
            rotation_long=rotation_long,
            rotation_long_back=rotation_long.conj().resolve_conj(),
            **self._window_inputs(step, rows),
            sample_rows=torch.from_numpy(samples.rows),
            sample_reverse=_optional(samples.reverse),
            num_samples=int(asking.sum()),
            ratios={
                ratio: self._ratio_inputs(step, rows, tables, ratio, kind)
                for ratio, kind in self._kinds.items()
            },
        )

    def _window_inputs(self, step: StepRows, rows: _Rows) -> dict[str, Any]:
        window, count = self._window, rows.num_tokens
        num_rows = len(rows.positions)
        seen = rows.positions[:, None] + np.arange(1 - window, 1)[None, :]
        slot_base = np.zeros(num_rows, dtype=np.int64)
        first_seen = np.zeros(num_rows, dtype=np.int64)
        slot_base[:count] = step.slots[rows.sequence_of_row[:count]]
        first_seen[:count] = step.window_starts[rows.sequence_of_row[:count]]
        slot_base = self._pool.windows_at + slot_base * self._pool.slot_rows
        named = slot_base[:, None] + seen % window
        valid = seen >= first_seen[:, None]
        valid[count:] = False
        columns = SINK_COLUMNS + self._window_columns
        in_window = slice(SINK_COLUMNS, SINK_COLUMNS + window)
        mask = np.full((num_rows, columns), NEG_INF, dtype=np.float32)
        mask[:, 0] = 0.0
        mask[:, in_window][valid] = 0.0
        is_new: torch.Tensor | None = None
        if not step.direct:
            first_new = step.starts[rows.sequence_of_row][:, None]
            new = (seen >= first_new) & valid
            offset = step.begins[rows.sequence_of_row][:, None] - first_new
            named = np.where(new, self._pool.scratch_at + seen + offset, named)
            wide = np.zeros((num_rows, columns), dtype=np.bool_)
            wide[:, in_window] = new
            is_new = torch.from_numpy(wide)
        listed = np.zeros((num_rows, columns), dtype=np.int64)
        listed[:, in_window] = named
        source, target = _ring_writes(step, window, self._pool.windows_at, self._pool.slot_rows)
        return {
            "window_rows": torch.from_numpy(listed),
            "window_is_new": is_new,
            "window_mask": torch.from_numpy(mask),
            "window_source": source,
            "window_target": target,
        }

    def _ratio_inputs(
        self, step: StepRows, rows: _Rows, table: IntArray, ratio: int, kind: LayerKind
    ) -> RatioInputs:
        overlap = kind is LayerKind.CSA
        per_page = self._layout.block_tokens // ratio
        visible = (rows.positions + 1) // ratio
        visible[rows.num_tokens :] = 0
        max_visible = int(step.ends.max(initial=0)) // ratio
        width = round_up(max_visible, KEY_TILE if overlap else SINK_COLUMNS)
        entry = np.arange(width)
        page_of = table[:, np.minimum(entry // per_page, table.shape[1] - 1)]
        place = entry % per_page
        entry_table = page_of * self._layout.entry_rows + place
        key_table = None
        if overlap:
            key_table = torch.from_numpy(page_of * self._layout.index_rows + place)
        everything = None
        if max_visible and (not overlap or max_visible <= self._layout.config.index_topk):
            columns = round_up(max_visible, SINK_COLUMNS)
            mask = np.where(entry[:columns] >= visible[:, None], _NEG_INF, _ZERO)
            everything = Selection(
                entry_rows=torch.from_numpy(entry_table[rows.sequence_of_row, :columns]),
                mask=torch.from_numpy(mask),
            )
        return RatioInputs(
            ratio=ratio,
            ring=2 * ratio if overlap else ratio,
            visible=torch.from_numpy(visible),
            max_visible=max_visible,
            **self._compressor_inputs(step, table, ratio, overlap=overlap),
            entry_table=torch.from_numpy(entry_table),
            key_table=key_table,
            everything=everything,
        )

    def _compressor_inputs(
        self, step: StepRows, table: IntArray, ratio: int, *, overlap: bool
    ) -> dict[str, Any]:
        """What the compressors of a ratio write: rows of the whole step on every rank."""
        ring = span = 2 * ratio if overlap else ratio
        per_page = self._layout.block_tokens // ratio
        # Groups that close in this step, sequence by sequence.
        owner, group = _closing_groups(step, ratio)
        num_groups = len(owner)
        padded = round_up(num_groups, 8)
        tokens = (group[:, None] + 1) * ratio - span + np.arange(span)[None, :]
        sequence_ring = np.empty(0, dtype=np.int64)
        if step.direct:
            source_rows = step.slots[owner][:, None] * ring + tokens % ring
        else:
            start = step.starts[owner][:, None]
            fresh = len(step.lengths) * ring + step.begins[owner][:, None] + tokens - start
            source_rows = np.where(tokens >= start, fresh, owner[:, None] * ring + tokens % ring)
            sequence_ring = (step.slots[:, None] * ring + np.arange(ring)[None, :]).ravel()
        group_rows = np.zeros((padded, span), dtype=np.int64)
        group_rows[:num_groups] = np.where(tokens >= 0, source_rows, 0)
        first = np.ones(padded, dtype=np.bool_)
        first[:num_groups] = group == 0
        rotation_at = np.zeros(padded, dtype=np.int64)
        rotation_at[:num_groups] = group * ratio
        pages = np.zeros(padded, dtype=np.int64)
        pages[:num_groups] = table[owner, group // per_page]
        places = np.zeros(padded, dtype=np.int64)
        places[:num_groups] = group % per_page
        source, target = _ring_writes(step, ring, 0, ring)
        return {
            "num_groups": num_groups,
            "group_rows": torch.from_numpy(group_rows),
            "first": torch.from_numpy(first),
            "group_rotation": self._rotary.long.index_select(0, torch.from_numpy(rotation_at)),
            "entry_pages": torch.from_numpy(pages),
            "entry_places": torch.from_numpy(places),
            "ring_source": source,
            "ring_target": target,
            "sequence_ring": torch.from_numpy(sequence_ring),
        }


@dataclass(slots=True, kw_only=True)
class _Rows:
    """Rows of this rank, padded: what is computed per row follows from these."""

    num_tokens: int
    positions: IntArray
    sequence_of_row: IntArray


def _closing_groups(step: StepRows, ratio: int) -> tuple[IntArray, IntArray]:
    """Sequence and number of every group that closes in this step and is not stored, in order."""
    if step.direct:
        owner = np.flatnonzero((step.ends % ratio == 0) & (step.ends > step.stored))
        return owner, step.starts[owner] // ratio
    first = np.maximum(step.starts, step.stored) // ratio
    counts = np.maximum(step.ends // ratio - first, 0)
    owner = np.repeat(np.arange(len(counts)), counts)
    group = (
        np.arange(len(owner))
        - np.repeat(np.cumsum(counts) - counts, counts)
        + np.repeat(first, counts)
    )
    return owner, group


def _ring_writes(
    step: StepRows, ring: int, base: int, stride: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the step that stay in a ring, and their ring rows: at most `ring` per sequence."""
    count = step.num_tokens
    if step.direct:
        target = base + step.slots * stride + step.starts % ring
        return torch.from_numpy(np.arange(count)), torch.from_numpy(target)
    owner = step.sequence_of_row
    last = step.ends[owner] - ring
    source = np.flatnonzero(step.positions >= last)
    target = base + step.slots[owner[source]] * stride + step.positions[source] % ring
    return torch.from_numpy(source), torch.from_numpy(target)


def _optional(values: IntArray | None) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(values)


def _padded_tables(tables: list[tuple[int, ...]]) -> IntArray:
    width = max((len(table) for table in tables), default=0) or 1
    padded = np.zeros((max(len(tables), 1), width), dtype=np.int64)
    for i, table in enumerate(tables):
        padded[i, : len(table)] = table
    return padded
