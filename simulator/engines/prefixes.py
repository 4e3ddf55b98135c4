"""Which prefixes a cache holds: content, capacity and least-recently-used eviction.

Content is blocks of 512 tokens named by the trace's ids; an id stands for its whole prefix, so a
match ends at the first id that is not there. A model with windows resumes only where a state is
stored: at every `state_every` blocks and at the last full block of each prompt that was stored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from simulator.traces.trace import BLOCK_TOKENS


class PrefixCache:
    """Blocks of one cache, shared or of one engine.

    Args:
        capacity_bytes: What fits; infinity for everything.
        block_bytes: KV of 512 tokens.
        state_bytes: State that is stored beside some blocks; 0 for models without windows.
        state_every: Blocks between two stored states.
    """

    def __init__(
        self,
        *,
        capacity_bytes: float,
        block_bytes: float,
        state_bytes: float = 0.0,
        state_every: int = 1,
    ) -> None:
        if capacity_bytes < 0 or block_bytes <= 0 or state_bytes < 0 or state_every < 1:
            raise ValueError(
                f"capacity_bytes {capacity_bytes} and state_bytes {state_bytes} must be at least "
                f"0, block_bytes {block_bytes} above 0, state_every {state_every} at least 1"
            )
        self._capacity_bytes = capacity_bytes
        self._block_bytes = block_bytes
        self._state_bytes = state_bytes
        self._state_every = state_every
        self._held: OrderedDict[int, bool] = OrderedDict()  # block id: whether its state is stored
        self.used_bytes = 0.0
        self.evicted_blocks = 0

    def __len__(self) -> int:
        """Blocks held."""
        return len(self._held)

    def matched_tokens(self, blocks: Sequence[int], prompt_tokens: int) -> int:
        """Tokens of a prompt from which prefill can go on; at least one token stays to compute."""
        held, usable = self._held, 0
        full = (prompt_tokens - 1) // BLOCK_TOKENS
        for number, block in enumerate(blocks[:full], start=1):
            has_state = held.get(block)
            if has_state is None:
                break
            if has_state:
                usable = number
        return usable * BLOCK_TOKENS

    def touch(self, blocks: Sequence[int], tokens: int) -> None:
        """Marks a prefix as used now."""
        for block in blocks[: tokens // BLOCK_TOKENS]:
            if block in self._held:
                self._held.move_to_end(block)

    def store(self, blocks: Sequence[int], prompt_tokens: int) -> float:
        """Takes the full blocks of a prompt in; returns the bytes that were new."""
        full = prompt_tokens // BLOCK_TOKENS
        before = self.used_bytes
        for number, block in enumerate(blocks[:full], start=1):
            has_state = number % self._state_every == 0 or number == full
            held = self._held.get(block)
            if held is None:
                self.used_bytes += self._block_bytes
            if has_state and not held:
                self.used_bytes += self._state_bytes
            self._held[block] = bool(held) or has_state
            self._held.move_to_end(block)
        stored = self.used_bytes - before
        while self.used_bytes > self._capacity_bytes and self._held:
            _, had_state = self._held.popitem(last=False)
            self.used_bytes -= self._block_bytes + (self._state_bytes if had_state else 0.0)
            self.evicted_blocks += 1
        return stored

    def loaded_bytes(self, tokens: int) -> float:
        """Bytes to read for going on after that many tokens: their blocks and one state."""
        if not tokens:
            return 0.0
        return tokens / BLOCK_TOKENS * self._block_bytes + self._state_bytes

    def check_integrity(self) -> None:
        """Raises AssertionError if an invariant is broken; for tests."""
        states = sum(self._held.values())
        expected = len(self._held) * self._block_bytes + states * self._state_bytes
        assert abs(self.used_bytes - expected) < 1.0, (self.used_bytes, expected)
        assert self.used_bytes <= self._capacity_bytes or not self._held
