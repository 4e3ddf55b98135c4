"""The port through which finished KV leaves the engine, with its null and in-memory forms.

A service gives each prefill request an export (the publisher, which writes to the store while later
chunks compute). The way in is simpler and needs no port: an image arrives with the request.
"""

from __future__ import annotations

from typing import Protocol

from engine.handoff import SequenceImage


class KvExport(Protocol):
    """Takes the KV of one request as it is computed.

    All methods are called on the engine thread between two steps and must not block. Bytes are the
    callee's to keep. An exception fails the request, not the engine. After a preemption nothing is
    given twice; a request that is aborted just stops calling.
    """

    def wants_state(self, end_tokens: int) -> bool:
        """Says whether the state after `end_tokens` tokens (whole blocks) is wanted.

        Asked once per block end when the request is queued; the answers decide where chunks end.
        """
        ...

    def save_block(self, block_idx: int, payload: bytes) -> None:
        """Takes one full block; in ascending order, each once."""
        ...

    def save_state(self, end_tokens: int, payload: bytes) -> None:
        """Takes a wanted boundary state, after the blocks before it."""
        ...

    def save_tail(self, num_tokens: int, partial: bytes, state: bytes) -> None:
        """Takes the unfinished block and the state after all given tokens. Once, last."""
        ...


class NullExport:
    """Wants nothing and drops what comes; for measuring an export's own cost."""

    def wants_state(self, end_tokens: int) -> bool:
        """Never."""
        del end_tokens
        return False

    def save_block(self, block_idx: int, payload: bytes) -> None:
        """Drops it."""

    def save_state(self, end_tokens: int, payload: bytes) -> None:
        """Drops it."""

    def save_tail(self, num_tokens: int, partial: bytes, state: bytes) -> None:
        """Drops it."""


class InMemoryExport:
    """Keeps everything, so that a second engine can go on where this one stopped.

    Args:
        block_tokens: tokens of a block.
        state_every_blocks: boundary states wanted, every so many blocks; 0 wants none.
        given: an earlier export whose blocks and states the request resumed from; its parts are
            taken over, as a prefix from the store would be.
    """

    def __init__(
        self,
        block_tokens: int,
        *,
        state_every_blocks: int = 0,
        given: InMemoryExport | None = None,
    ) -> None:
        self._block_tokens = block_tokens
        self._stride_tokens = state_every_blocks * block_tokens
        self.blocks: dict[int, bytes] = dict(given.blocks) if given else {}
        self.states: dict[int, bytes] = dict(given.states) if given else {}
        self._saved: set[int] = set()
        self.tail: tuple[int, bytes, bytes] | None = None

    def wants_state(self, end_tokens: int) -> bool:
        """Every `state_every_blocks` blocks."""
        return self._stride_tokens > 0 and end_tokens % self._stride_tokens == 0

    def save_block(self, block_idx: int, payload: bytes) -> None:
        """Keeps it; an equal copy of a block that was given is welcome.

        Raises:
            ValueError: the block came before, or differs from the copy that was given.
        """
        if block_idx in self._saved:
            raise ValueError(f"block {block_idx} came twice")
        self._saved.add(block_idx)
        if self.blocks.setdefault(block_idx, payload) != payload:
            raise ValueError(f"block {block_idx} differs from the copy that was given")

    def save_state(self, end_tokens: int, payload: bytes) -> None:
        """Keeps it."""
        self.states[end_tokens] = payload

    def save_tail(self, num_tokens: int, partial: bytes, state: bytes) -> None:
        """Keeps it."""
        self.tail = (num_tokens, partial, state)

    def image(self) -> SequenceImage:
        """Returns the state at the end of the given tokens.

        Raises:
            LookupError: the tail has not come, or a block is missing.
        """
        if self.tail is None:
            raise LookupError("the prefill has not reached the end of its tokens")
        num_tokens, partial, state = self.tail
        return self._image_of(num_tokens, partial, state)

    def prefix_image(self, end_tokens: int) -> SequenceImage:
        """Returns the state at a boundary that was wanted.

        Raises:
            LookupError: that state or a block before it is missing.
        """
        return self._image_of(end_tokens, b"", self.states[end_tokens])

    def _image_of(self, num_tokens: int, partial: bytes, state: bytes) -> SequenceImage:
        blocks = tuple(self.blocks[idx] for idx in range(num_tokens // self._block_tokens))
        return SequenceImage(num_tokens=num_tokens, blocks=blocks, partial=partial, state=state)
