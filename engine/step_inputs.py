"""The tensors of one step, which all layers share, and what their rows mean.

Everything here depends on the plan and the layout only, is computed once per step, and is shared by
all layers; a layer adds its own offset to the row lists.

Rows are padded to a multiple of `row_multiple` (see `disagg_kernels.testing`): padding rows have
position 0, belong to no sequence, see only the sink, are never routed, and write to scratch.

With context parallelism a rank computes a part of the step's rows, and all ranks write all KV: what
is said per row is about this rank's rows, what is said of writes is about the rows of the whole
step, which are those of all ranks put back in order (see `engine.step_rows`).

A step in which every sequence has one token is *direct*: its new rows go into the rings first, and
all reads come from there. Otherwise a query may need a ring row that a later token of the same
chunk overwrites, so the chunk's rows are read from scratch and the rings are written afterwards.
Both give the same bits: rows are only copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

NEG_INF = float("-inf")


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
        num_rows: Rows with padding; num_tokens: without. The first `num_tokens` reach experts.
        reverse: [T] place of each row of the step among those of all cp ranks one after the other;
            None when this rank has all rows of the step.
        token_ids, positions: [rows] int64.
        direct: Whether every sequence has one token.
        spans: Per sequence with rows here (sequence, first row, end row).
        sequence_of_row: [rows] int64; padding names sequence 0.
        rotation_window, rotation_long: [rows, pairs] complex64; `_back` turns the other way.
        window_rows: [rows, sink + window columns] pool rows without layer offset; the sink's
            columns name the zero row.
        window_is_new: [rows, sink + window columns] bool, True where the row is not in the ring
            but in scratch, which has no layer offset; None when direct.
        window_mask: [rows, sink + window columns] 0 or -inf.
        window_source, window_target: Rows of the step that enter the window rings, and where.
        sample_rows: [samples, padded] rows whose logits are wanted; sample_reverse: as `reverse`,
            for the samples of the step, padded; num_samples: how many count.
        ratios: By compression ratio.
    """

    num_rows: int
    num_tokens: int
    reverse: torch.Tensor | None
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
    sample_reverse: torch.Tensor | None
    num_samples: int
    ratios: dict[int, RatioInputs]
