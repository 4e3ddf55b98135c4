"""Floating-point work of chunks and decode steps, summed over kinds of layers.

Unit: FP8-equivalent FLOPs, as the public engine of this family counts them: a multiply-add is 2 at
FP8 rate, 4 in bf16, 8 in float32. Layers that cost the same are one `LayerKind` with a count, so a
chunk is priced in microseconds. Norms, drafts, padding and replicas are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.work.pairs import Visits


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Layers that see the same rows of a chunk, summed.

    Args:
        row: FLOPs of a row outside the routed experts.
        routed: FLOPs of a row in the routed experts.
        full_row: FLOPs of a row that is computed for all rows, whatever replay keeps.
        left_out: Part of `row` that is computed for all rows even where replay keeps few.
        entries: (layers, tokens of a stored entry, FLOPs of making it).
        visits: (layers, what a query of them reads).
        is_replayed: With decoder replay only the last rows of the prompt pass here.
    """

    row: int = 0
    routed: int = 0
    full_row: int = 0
    left_out: int = 0
    entries: tuple[tuple[int, int, int], ...] = ()
    visits: tuple[tuple[int, Visits], ...] = ()
    is_replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """FLOPs of a piece of work.

    Args:
        own: What the rank of the tokens computes itself.
        routed: What the routed experts compute, on whichever ranks hold them.
    """

    own: int
    routed: int

    @property
    def total(self) -> int:
        """Both."""
        return self.own + self.routed


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """What a model computes and reads.

    Args:
        layers: All layers; one group, or two where decoder replay is possible.
        head: FLOPs of one row of logits.
    """

    layers: tuple[Layers, ...]
    head: int

    def prefill(self, q: int, k: int, *, prompt: int, keep: int | None = None) -> Work:
        """Work of a chunk.

        Args:
            q: Tokens of the chunk, at least 1.
            k: Tokens of the prompt up to the chunk's end.
            prompt: Tokens of the whole prompt.
            keep: Rows kept by decoder replay; None when it is off.
        """
        own, routed = self.head, 0
        for group in self.layers:
            rows, window_from, window_to = q, k - q, k
            if keep is not None and group.is_replayed:
                cut = prompt - keep
                rows = max(1, min(q, k - cut))  # a chunk before the cut keeps one dummy row
                window_from, window_to = max(k - rows - cut, 0), max(k - cut, 0)
            own += group.row * rows + group.left_out * (q - rows) + group.full_row * q
            routed += group.routed * rows
            for count, ratio, flops in group.entries:
                own += count * flops * max(1, k // ratio - (k - q) // ratio)
            for count, visit in group.visits:
                start, end = (window_from, window_to) if visit.is_window else (k - rows, k)
                own += count * visit.flops * visit.pairs(start, end)
        return Work(own=own, routed=routed)

    def decode(self, q: int, k: int) -> Work:
        """Work of `q` rows of one sequence that holds `k` tokens with them."""
        own, routed = self.head * q, 0
        for group in self.layers:
            own += (group.row + group.full_row) * q
            routed += group.routed * q
            own += q * sum(count * flops for count, _, flops in group.entries)
            for count, visit in group.visits:
                own += count * visit.flops * visit.pairs(k - q, k)
        return Work(own=own, routed=routed)

    def read_bytes(self, context: int) -> int:
        """KV bytes that one decode row reads in a context of that many tokens."""
        return sum(
            count * visit.entry_bytes * visit.entries(context)
            for group in self.layers
            for count, visit in group.visits
        )
