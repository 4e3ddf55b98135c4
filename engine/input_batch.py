"""A step plan as tensors: positions, row lists, masks, and where each written row goes.

Everything here depends on the plan and the layout only, is computed once per step, and is shared by
all layers; a layer adds its own offset to the row lists.

Rows are padded to a multiple of `row_multiple` (see `disagg_kernels.testing`): padding rows have
position 0, belong to no sequence, see only the sink, are never routed, and write to scratch.

A step in which every sequence has one token is *direct*: its new rows go into the rings first, and
all reads come from there. Otherwise a query may need a ring row that a later token of the same
chunk overwrites, so the chunk's rows are read from scratch and the rings are written afterwards.
Both give the same bits: rows are only copied.
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
from engine.plan import StepPlan

NEG_INF = float("-inf")
_NEG_INF, _ZERO = np.float32("-inf"), np.float32(0.0)
IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(slots=True, kw_only=True)
class RatioInputs:
    """What all layers of one compression ratio share in a step.

    Attributes:
        ratio: Tokens of a group.
        ring: Raw rows per slot of the compressor's ring.
        visible: [rows] complete entries each row sees.
        num_groups: Groups that close in this step.
        group_rows: [groups, tokens] rows of the compressor source: the ring when direct, else the
            sequences' ring rows followed by the step's new rows. Padded to a multiple of 8.
        first: [groups] True where a group has no predecessor.
        group_rotation: [groups, pairs] rotation at each group's first own token.
        entry_pages: [groups] page of each new entry; entry_places: its place among the layer's
            entries of that page. Padding goes to page 0.
        ring_source: Rows of the step that enter the ring; ring_target: their ring rows.
        sequence_ring: [sequences * ring] ring rows of the step's sequences; empty when direct.
        entry_table, key_table: [sequences, entries] rows of every visible entry and of its index
            key, counted from the first of page 0; the number of entries is padded, padding names
            page 0. The latter only for ratios with an indexer.
        max_visible: Largest of `visible`.
        everything: What a layer reads that attends to all visible entries; None if there are none,
            or more than the indexer may keep.
    """

    ratio: int
    ring: int
    visible: torch.Tensor
    max_visible: int
    num_groups: int
    group_rows: torch.Tensor
    first: torch.Tensor
    group_rotation: torch.Tensor
    entry_pages: torch.Tensor
    entry_places: torch.Tensor
    ring_source: torch.Tensor
    ring_target: torch.Tensor
    sequence_ring: torch.Tensor
    entry_table: torch.Tensor
    key_table: torch.Tensor | None
    everything: Selection | None


@dataclass(slots=True, kw_only=True)
class Selection:
    """Compressed entries that rows attend to, and which of them count.

    Attributes:
        entry_rows: [rows, columns] int64 pool rows, counted from the first entry of page 0.
        mask: [rows, columns] float32, 0 or -inf.
    """

    entry_rows: torch.Tensor
    mask: torch.Tensor
    _joined: tuple[torch.Tensor, torch.Tensor] | None = None

    def behind_window(self, inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Row list and mask of window and entries together, without offsets; made once."""
        if self._joined is None:
            self._joined = (
                torch.cat([inputs.window_rows, self.entry_rows], 1),
                torch.cat([inputs.window_mask, self.mask], 1),
            )
        return self._joined


@dataclass(slots=True, kw_only=True)
class StepInputs:
    """One step's tensors; see the module docstring.

    Attributes:
        num_rows: Rows with padding; num_tokens: without.
        token_ids, positions: [rows] int64.
        routed: Rows that reach experts (the first `num_tokens`).
        direct: Whether every sequence has one token.
        spans: Per sequence (sequence, first row, end row).
        sequence_of_row: [rows] int64; padding names sequence 0.
        rotation_window, rotation_long: [rows, pairs] complex64; `_back` turns the other way.
        window_rows: [rows, sink + window columns] pool rows without layer offset; the sink's
            columns name the zero row.
        window_is_new: [rows, sink + window columns] bool, True where the row is not in the ring
            but in scratch, which has no layer offset; None when direct.
        window_mask: [rows, sink + window columns] 0 or -inf.
        window_source, window_target: Rows that enter the window rings, and where.
        sample_rows: [samples, padded] rows whose logits are wanted; num_samples: how many count.
        ratios: By compression ratio.
    """

    num_rows: int
    num_tokens: int
    token_ids: torch.Tensor
    positions: torch.Tensor
    direct: bool
    spans: tuple[tuple[int, int, int], ...]
    sequence_of_row: torch.Tensor
    rotation_window: torch.Tensor
    rotation_window_back: torch.Tensor
    rotation_long: torch.Tensor
    rotation_long_back: torch.Tensor
    window_rows: torch.Tensor
    window_is_new: torch.Tensor | None
    window_mask: torch.Tensor
    window_source: torch.Tensor
    window_target: torch.Tensor
    sample_rows: torch.Tensor
    num_samples: int
    ratios: dict[int, RatioInputs]


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below `value`."""
    return -(-value // multiple) * multiple


class InputBuilder:
    """Turns plans into tensors for one pool."""

    def __init__(
        self, layout: KvLayout, pool: KvPool, rotary: RotaryTables, *, row_multiple: int
    ) -> None:
        self._layout = layout
        self._pool = pool
        self._rotary = rotary
        self._row_multiple = row_multiple
        self._window = layout.config.sliding_window
        self._window_columns = round_up(self._window, SINK_COLUMNS)
        self._kinds = {layer.ratio: layer.kind for layer in layout.config.layers if layer.owns_kv}

    def build(self, plan: StepPlan) -> StepInputs:
        """Returns the tensors of a plan; a placeholder plan gives padding rows only."""
        sequences = plan.sequences
        lengths = np.array([s.num_tokens for s in sequences], dtype=np.int64)
        starts = np.array([s.start for s in sequences], dtype=np.int64)
        slots = np.array([s.state_slot for s in sequences], dtype=np.int64)
        num_tokens = int(lengths.sum())
        num_rows = max(round_up(num_tokens, self._row_multiple), self._row_multiple)
        ends = np.cumsum(lengths)
        begins = ends - lengths
        direct = bool((lengths == 1).all())
        sequence_of_row = np.zeros(num_rows, dtype=np.int64)
        sequence_of_row[:num_tokens] = np.repeat(np.arange(len(sequences)), lengths)
        positions = np.zeros(num_rows, dtype=np.int64)
        positions[:num_tokens] = (
            np.arange(num_tokens) - np.repeat(begins, lengths) + np.repeat(starts, lengths)
        )
        token_ids = np.zeros(num_rows, dtype=np.int64)
        if sequences:
            token_ids[:num_tokens] = np.concatenate([s.token_ids for s in sequences])
        step = _Step(
            lengths=lengths,
            starts=starts,
            slots=slots,
            begins=begins,
            num_tokens=num_tokens,
            num_rows=num_rows,
            positions=positions,
            sequence_of_row=sequence_of_row,
            direct=direct,
        )
        samples = [int(ends[i]) - 1 for i, s in enumerate(sequences) if s.sample]
        padded = round_up(len(samples), self._row_multiple)
        position_tensor = torch.from_numpy(positions)
        rotation_window = self._rotary.window.index_select(0, position_tensor)
        rotation_long = self._rotary.long.index_select(0, position_tensor)
        tables = [s.block_table for s in sequences]
        return StepInputs(
            num_rows=num_rows,
            num_tokens=num_tokens,
            token_ids=torch.from_numpy(token_ids),
            positions=position_tensor,
            direct=direct,
            spans=tuple(
                (i, int(begin), int(begin + length))
                for i, (begin, length) in enumerate(zip(begins, lengths, strict=True))
            ),
            sequence_of_row=torch.from_numpy(sequence_of_row),
            rotation_window=rotation_window,
            rotation_window_back=rotation_window.conj().resolve_conj(),
            rotation_long=rotation_long,
            rotation_long_back=rotation_long.conj().resolve_conj(),
            **self._window_inputs(step),
            sample_rows=torch.tensor(samples + [0] * (padded - len(samples)), dtype=torch.int64),
            num_samples=len(samples),
            ratios={
                ratio: self._ratio_inputs(step, tables, ratio, kind)
                for ratio, kind in self._kinds.items()
            },
        )

    def _window_inputs(self, step: _Step) -> dict[str, Any]:
        window = self._window
        seen = step.positions[:, None] + np.arange(1 - window, 1)[None, :]
        slot_base = np.zeros(step.num_rows, dtype=np.int64)
        slot_base[: step.num_tokens] = step.slots[step.sequence_of_row[: step.num_tokens]]
        slot_base = self._pool.windows_at + slot_base * self._pool.slot_rows
        rows = slot_base[:, None] + seen % window
        valid = seen >= 0
        valid[step.num_tokens :] = False
        columns = SINK_COLUMNS + self._window_columns
        in_window = slice(SINK_COLUMNS, SINK_COLUMNS + window)
        mask = np.full((step.num_rows, columns), NEG_INF, dtype=np.float32)
        mask[:, 0] = 0.0
        mask[:, in_window][valid] = 0.0
        is_new: torch.Tensor | None = None
        if not step.direct:
            first_new = step.starts[step.sequence_of_row][:, None]
            new = (seen >= first_new) & valid
            offset = step.begins[step.sequence_of_row][:, None] - first_new
            rows = np.where(new, self._pool.scratch_at + seen + offset, rows)
            wide = np.zeros((step.num_rows, columns), dtype=np.bool_)
            wide[:, in_window] = new
            is_new = torch.from_numpy(wide)
        listed = np.zeros((step.num_rows, columns), dtype=np.int64)
        listed[:, in_window] = rows
        source, target = _ring_writes(step, window, self._pool.windows_at, self._pool.slot_rows)
        return {
            "window_rows": torch.from_numpy(listed),
            "window_is_new": is_new,
            "window_mask": torch.from_numpy(mask),
            "window_source": source,
            "window_target": target,
        }

    def _ratio_inputs(
        self, step: _Step, tables: list[tuple[int, ...]], ratio: int, kind: LayerKind
    ) -> RatioInputs:
        overlap = kind is LayerKind.CSA
        ring = 2 * ratio if overlap else ratio
        per_page = self._layout.block_tokens // ratio
        visible = (step.positions + 1) // ratio
        visible[step.num_tokens :] = 0
        ends = step.starts + step.lengths
        # Groups that close in this step, sequence by sequence.
        owner, group = _closing_groups(step, ends, ratio)
        num_groups = len(owner)
        padded = round_up(num_groups, 8)
        span = 2 * ratio if overlap else ratio
        tokens = (group[:, None] + 1) * ratio - span + np.arange(span)[None, :]
        if step.direct:
            rows = step.slots[owner][:, None] * ring + tokens % ring
        else:
            start = step.starts[owner][:, None]
            fresh = len(ends) * ring + step.begins[owner][:, None] + tokens - start
            rows = np.where(tokens >= start, fresh, owner[:, None] * ring + tokens % ring)
        group_rows = np.zeros((padded, span), dtype=np.int64)
        group_rows[:num_groups] = np.where(tokens >= 0, rows, 0)
        first = np.ones(padded, dtype=np.bool_)
        first[:num_groups] = group == 0
        rotation_at = np.zeros(padded, dtype=np.int64)
        rotation_at[:num_groups] = group * ratio
        table = _padded_tables(tables)
        pages = np.zeros(padded, dtype=np.int64)
        pages[:num_groups] = table[owner, group // per_page]
        places = np.zeros(padded, dtype=np.int64)
        places[:num_groups] = group % per_page
        max_visible = int(ends.max()) // ratio if len(ends) else 0
        width = round_up(max_visible, KEY_TILE if overlap else SINK_COLUMNS)
        entry = np.arange(width)
        page_index = np.minimum(entry // per_page, table.shape[1] - 1)
        source, target = _ring_writes(step, ring, 0, ring)
        page_of = table[:, page_index]
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
                entry_rows=torch.from_numpy(entry_table[step.sequence_of_row, :columns]),
                mask=torch.from_numpy(mask),
            )
        sequence_ring = np.empty(0, dtype=np.int64)
        if not step.direct:
            sequence_ring = (step.slots[:, None] * ring + np.arange(ring)[None, :]).ravel()
        return RatioInputs(
            ratio=ratio,
            ring=ring,
            visible=torch.from_numpy(visible),
            max_visible=max_visible,
            num_groups=num_groups,
            group_rows=torch.from_numpy(group_rows),
            first=torch.from_numpy(first),
            group_rotation=self._rotary.long.index_select(0, torch.from_numpy(rotation_at)),
            entry_pages=torch.from_numpy(pages),
            entry_places=torch.from_numpy(places),
            ring_source=source,
            ring_target=target,
            sequence_ring=torch.from_numpy(sequence_ring),
            entry_table=torch.from_numpy(entry_table),
            key_table=key_table,
            everything=everything,
        )


@dataclass(slots=True, kw_only=True)
class _Step:
    lengths: IntArray
    starts: IntArray
    slots: IntArray
    begins: IntArray
    num_tokens: int
    num_rows: int
    positions: IntArray
    sequence_of_row: IntArray
    direct: bool


def _closing_groups(step: _Step, ends: IntArray, ratio: int) -> tuple[IntArray, IntArray]:
    """Sequence and number of every group that closes in this step, in order."""
    if step.direct:
        owner = np.flatnonzero(ends % ratio == 0)
        return owner, step.starts[owner] // ratio
    counts = ends // ratio - step.starts // ratio
    owner = np.repeat(np.arange(len(ends)), counts)
    group = (
        np.arange(len(owner))
        - np.repeat(np.cumsum(counts) - counts, counts)
        + np.repeat(step.starts // ratio, counts)
    )
    return owner, group


def _ring_writes(
    step: _Step, ring: int, base: int, stride: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the step that stay in a ring, and their ring rows: at most `ring` per sequence."""
    count = step.num_tokens
    if step.direct:
        target = base + step.slots * stride + step.starts % ring
        return torch.from_numpy(np.arange(count)), torch.from_numpy(target)
    owner = step.sequence_of_row[:count]
    last = (step.starts + step.lengths)[owner] - ring
    source = np.flatnonzero(step.positions[:count] >= last)
    target = base + step.slots[owner[source]] * stride + step.positions[source] % ring
    return torch.from_numpy(source), torch.from_numpy(target)


def _padded_tables(tables: list[tuple[int, ...]]) -> IntArray:
    width = max((len(table) for table in tables), default=0) or 1
    padded = np.zeros((max(len(tables), 1), width), dtype=np.int64)
    for i, table in enumerate(tables):
        padded[i, : len(table)] = table
    return padded
