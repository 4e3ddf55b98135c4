"""Where a prompt's prefix is found and how it comes to the engine that needs it.

shared   one store: every engine finds the same, through the store's links and its own
local    an engine's own host memory: nobody else finds it, nothing travels
pooled   as local, and an engine fetches what another holds more of, link to link
"""

from __future__ import annotations

from simulator.engines.links import through
from simulator.machines import Machines

Blocks = tuple[int, ...]


class PrefixPaths:
    """Looks prefixes up, loads them and stores prompts, as the topology's cache is built."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._cache = machines.topology.store.cache

    def lookup(self, blocks: Blocks, prompt_tokens: int) -> tuple[int, dict[str, int]]:
        """Cached tokens that any engine can use, and those that single engines hold, by id."""
        machines = self._machines
        if not blocks:
            return 0, {}
        if self._cache == "shared":
            return machines.store.matched_tokens(blocks, prompt_tokens), {}
        local = {
            name: tokens
            for name, cache in zip(machines.prefill_ids, machines.local, strict=True)
            if (tokens := cache.matched_tokens(blocks, prompt_tokens))
        }
        return max(local.values(), default=0) if self._cache == "pooled" else 0, local

    def load(
        self,
        now: float,
        blocks: Blocks,
        prompt_tokens: int,
        engine: int,
        *,
        tokens: int,
        own: int,
    ) -> tuple[float, float]:
        """Starts loading a cached prefix.

        Args:
            engine: Where it is needed.
            tokens: Length of the prefix.
            own: Tokens of it that the engine holds itself.

        Returns:
            When it is there, and the bytes that travel.
        """
        machines = self._machines
        if not tokens:
            return now, 0.0
        if self._cache == "shared":
            machines.store.touch(blocks, tokens)
            num_bytes = machines.store.loaded_bytes(tokens)
            links = (machines.store_out, machines.prefill_in[engine])
            return through(num_bytes, now, *links), num_bytes
        machines.local[engine].touch(blocks, tokens)
        if own >= tokens:
            return now, 0.0
        holder = self._holder(blocks, prompt_tokens, tokens, now)
        machines.local[holder].touch(blocks, tokens)
        num_bytes = machines.local[holder].loaded_bytes(tokens - own)
        links = (machines.prefill_out[holder], machines.prefill_in[engine])
        return through(num_bytes, now, *links), num_bytes

    def store(self, blocks: Blocks, prompt_tokens: int, engine: int) -> None:
        """Keeps the blocks of a prompt that `engine` has computed."""
        machines = self._machines
        cache = machines.store if self._cache == "shared" else machines.local[engine]
        cache.store(blocks, prompt_tokens)

    def _holder(self, blocks: Blocks, prompt_tokens: int, tokens: int, now: float) -> int:
        """Of the engines that hold the prefix, the one whose link is free first."""
        machines = self._machines
        holders = [
            engine
            for engine, cache in enumerate(machines.local)
            if cache.matched_tokens(blocks, prompt_tokens) >= tokens
        ]
        return min(holders, key=lambda engine: machines.prefill_out[engine].wait_s(now))
