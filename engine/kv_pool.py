"""Device memory of a rank's KV: pages for what grows, slots for what does not.

One float32 storage holds, as rows of `head_dim` elements:

    [0, 16)                      zeros: the sink's key and other masked columns
    [pages_at, windows_at)       pages, `layout.entry_rows` rows each
    [windows_at, scratch_at)     window rings, per slot and layer `sliding_window` rows
    [scratch_at, end)            rows of the running step's tokens, shared by all layers

so that one gather brings window rows and compressed entries together. The same storage seen as rows
of `index_head_dim` holds the index keys of the pages. Raw compressor rows live in one ring per
compressed layer. Page 0 and slot 0 are scratch: padding writes there.

Invariant: the ring row of position p is `p % ring`; rows of positions that no later token needs may
hold anything finite.
"""

import math
from collections.abc import Sequence

import torch

from engine.handoff import Buffer, KvLayout, LayerSlice, LayoutError, SequenceImage
from engine.model.config import LayerKind

ZERO_ROWS = 16


class KvPool:
    """Pages and slots of one rank.

    Attributes:
        rows: [*, head_dim] view of the storage.
        index_rows: [*, index_head_dim] view of the storage.
        rings: Per KV-owning layer the compressor's raw rows, [slots * ring, 2 * c * head_dim].
        index_rings: Per CSA layer the indexer compressor's rows, [slots * ring, 4 * index width].
    """

    def __init__(
        self,
        layout: KvLayout,
        *,
        num_pages: int,
        num_slots: int,
        max_tokens: int,
        device: str = "cpu",
    ) -> None:
        if num_pages < 2 or num_slots < 2:
            raise ValueError(
                f"num_pages is {num_pages} and num_slots {num_slots}; both need at least 2, since "
                "number 0 of each is scratch"
            )
        config = layout.config
        width, index_width = config.head_dim, config.index_head_dim
        self.layout = layout
        self.num_pages = num_pages
        self.num_slots = num_slots
        self.max_tokens = max_tokens
        self.window = config.sliding_window
        # Pages must start where both row widths do.
        self.pages_at = ZERO_ROWS * (index_width // math.gcd(width, index_width))
        self.windows_at = self.pages_at + num_pages * layout.entry_rows
        self.slot_rows = config.num_layers * self.window
        self.scratch_at = self.windows_at + num_slots * self.slot_rows
        total = self.scratch_at + max_tokens
        total = -(-total // index_width) * index_width
        storage = torch.zeros(total * width, dtype=torch.float32, device=device)
        self._storage = storage
        self.rows = storage.view(-1, width)
        self.index_rows = storage.view(-1, index_width)
        self.index_pages_at = self.pages_at * width // index_width
        self.rings: dict[int, torch.Tensor] = {}
        self.index_rings: dict[int, torch.Tensor] = {}
        for part in layout.slices:
            ring = ring_rows(part)
            columns = (4 if part.kind is LayerKind.CSA else 2) * width
            self.rings[part.layer] = torch.zeros(num_slots * ring, columns, device=device)
            if part.index_row is not None:
                self.index_rings[part.layer] = torch.zeros(
                    num_slots * ring, 4 * index_width, device=device
                )

    def export_block(self, page: int) -> bytes:
        """Returns one page's bytes."""
        begin = (self.pages_at + page * self.layout.entry_rows) * self.layout.config.head_dim
        return _to_bytes(self._storage[begin : begin + self.layout.block_elements])

    def import_block(self, page: int, payload: Buffer) -> None:
        """Overwrites one page."""
        begin = (self.pages_at + page * self.layout.entry_rows) * self.layout.config.head_dim
        self._storage[begin : begin + self.layout.block_elements] = _from_bytes(payload)

    def export_partial(self, page: int, num_tokens: int) -> bytes:
        """Returns the entries and index keys that an unfinished block holds so far."""
        return b"".join(_to_bytes(rows) for rows in self._partial_views(page, num_tokens))

    def import_partial(self, page: int, num_tokens: int, payload: Buffer) -> None:
        """Writes an unfinished block's entries and index keys."""
        if num_tokens % self.layout.block_tokens:
            _scatter(payload, self._partial_views(page, num_tokens))

    def export_state(self, slot: int, num_tokens: int) -> bytes:
        """Returns windows and compressor rows of a slot after `num_tokens` tokens."""
        pieces = [
            self.rows.index_select(0, index) for index in self._window_index(slot, num_tokens)
        ]
        for ring, columns, index in self._ring_parts(slot, num_tokens):
            pieces.append(ring.index_select(0, index)[:, columns])
        return b"".join(_to_bytes(piece) for piece in pieces)

    def import_state(self, slot: int, num_tokens: int, payload: Buffer) -> None:
        """Writes windows and compressor rows of a slot."""
        flat = _from_bytes(payload)
        begin = 0
        width = self.layout.config.head_dim
        for index in self._window_index(slot, num_tokens):
            end = begin + index.numel() * width
            self.rows.index_copy_(0, index, flat[begin:end].view(-1, width))
            begin = end
        for ring, columns, index in self._ring_parts(slot, num_tokens):
            end = begin + index.numel() * columns.numel()
            ring[index[:, None], columns[None, :]] = flat[begin:end].view(-1, columns.numel())
            begin = end

    def export_image(
        self, table: Sequence[int], slot: int, num_tokens: int, *, blocks: bool = True
    ) -> SequenceImage:
        """Copies a sequence out.

        Args:
            table: Page ids in token order.
            slot: State slot.
            num_tokens: Tokens whose KV is there.
            blocks: Whether the full blocks are wanted, too.
        """
        full = self.layout.num_blocks(num_tokens)
        partial = b""
        if num_tokens % self.layout.block_tokens:
            partial = self.export_partial(table[full], num_tokens)
        return SequenceImage(
            num_tokens=num_tokens,
            blocks=tuple(self.export_block(page) for page in table[:full]) if blocks else (),
            partial=partial,
            state=self.export_state(slot, num_tokens),
        )

    def import_image(self, image: SequenceImage, table: Sequence[int], slot: int) -> None:
        """Copies a sequence in; the slot must have been reset.

        Windows of an image that comes without state stay empty.

        Raises:
            LayoutError: the image's sizes are not those of this layout, or the table is too short.
        """
        self.layout.check(image)
        pages = -(-image.num_tokens // self.layout.block_tokens)
        if len(table) < pages:
            raise LayoutError(
                f"image of {image.num_tokens} tokens: the table has {len(table)} pages, wanted "
                f"{pages}"
            )
        for page, payload in zip(table, image.blocks, strict=False):
            self.import_block(page, payload)
        if image.partial:
            self.import_partial(table[len(image.blocks)], image.num_tokens, image.partial)
        if image.state:
            self.import_state(slot, image.state_tokens, image.state)

    def reset_slot(self, slot: int) -> None:
        """Empties a slot: what a former owner left must not be seen by the next."""
        begin = self.windows_at + slot * self.slot_rows
        self.rows[begin : begin + self.slot_rows] = 0.0
        for part in self.layout.slices:
            ring = ring_rows(part)
            self.rings[part.layer][slot * ring : (slot + 1) * ring] = 0.0
            if part.index_row is not None:
                self.index_rings[part.layer][slot * ring : (slot + 1) * ring] = 0.0

    def _partial_views(self, page: int, num_tokens: int) -> list[torch.Tensor]:
        views = []
        for part in self.layout.slices:
            count = self.layout.partial_entries(part, num_tokens)
            begin = self.pages_at + page * self.layout.entry_rows + part.entry_row
            views.append(self.rows[begin : begin + count])
        for part in self.layout.slices:
            if part.index_row is None:
                continue
            count = self.layout.partial_entries(part, num_tokens)
            begin = self.index_pages_at + page * self.layout.index_rows + part.index_row
            views.append(self.index_rows[begin : begin + count])
        return views

    def _window_index(self, slot: int, num_tokens: int) -> list[torch.Tensor]:
        kept = self.layout.window_rows(num_tokens)
        ring = torch.arange(num_tokens - kept, num_tokens) % self.window
        base = self.windows_at + slot * self.slot_rows
        return [base + layer * self.window + ring for layer in range(self.layout.config.num_layers)]

    def _ring_parts(
        self, slot: int, num_tokens: int
    ) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(ring, columns, rows) of what each compressor still needs, in canonical order."""
        parts = []
        for part in self.layout.slices:
            ring = ring_rows(part)
            open_begin = num_tokens - num_tokens % part.ratio
            open_rows = slot * ring + torch.arange(open_begin, num_tokens) % ring
            tensors = [self.rings[part.layer]]
            if part.index_row is not None:
                tensors.append(self.index_rings[part.layer])
            for tensor in tensors:
                columns = tensor.shape[1]
                if part.kind is LayerKind.CSA and num_tokens >= part.ratio:
                    # Of the previous group only the first halves of keys and scores are needed.
                    quarter = columns // 4
                    halves = torch.cat(
                        [torch.arange(quarter), torch.arange(2 * quarter, 3 * quarter)]
                    )
                    previous = torch.arange(open_begin - part.ratio, open_begin) % ring
                    parts.append((tensor, halves, slot * ring + previous))
                parts.append((tensor, torch.arange(columns), open_rows))
        return parts


def ring_rows(part: LayerSlice) -> int:
    """Raw rows a compressor keeps: the open group, and for CSA the one before."""
    return 2 * part.ratio if part.kind is LayerKind.CSA else part.ratio


def _to_bytes(values: torch.Tensor) -> bytes:
    return values.contiguous().numpy().tobytes()


def _from_bytes(payload: Buffer) -> torch.Tensor:
    if len(payload) == 0:
        return torch.empty(0)
    # frombuffer warns on read-only memory although it is only read here; a copy avoids both.
    return torch.frombuffer(bytearray(payload), dtype=torch.float32)


def _scatter(payload: Buffer, views: list[torch.Tensor]) -> None:
    flat = _from_bytes(payload)
    begin = 0
    for view in views:
        end = begin + view.numel()
        view.copy_(flat[begin:end].view_as(view))
        begin = end
