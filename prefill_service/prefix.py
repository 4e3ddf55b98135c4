"""Loads the longest stored prefix of a prompt from which prefill can resume.

Blocking; runs in a thread. The look-up is advisory: every byte is verified by the store library
when it is read, and what is missing or corrupt leads to the next best prefix instead of failing the
prompt: a lost block ends what is usable before it, a lost state only rules out going on from there.
Each such case is counted by its cause.

Invariants: a loaded prefix ends at a block end whose boundary state was verified, or before which a
replay is long enough to rebuild it, and leaves at least one token of the prompt to compute.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.buffers import Buffer
from kvstore.digests import combine_digests, payload_digest
from kvstore.errors import BlockCorrupt, BlockMissing, KvStoreError
from kvstore.lookup import PrefixMatch, match_prefix
from kvstore.resume import ResumePlan, plan_resume
from kvstore.store import KvStore
from runtime.metrics import Metrics
from runtime.telemetry import Span, current
from runtime.tracing.propagation import parse_traceparent
from runtime.tracing.table import MAX_PREFIX_LINKS

logger = logging.getLogger(__name__)

# Every retry follows a failed read, so a store that loses keys faster than we read ends the loop.
MAX_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPrefix:
    """Verified KV of the first `num_tokens` tokens of a prompt.

    Args:
        num_tokens: A multiple of the block size.
        blocks: One payload per block.
        digests: Their digests.
        state: Boundary state behind the last block; empty where a replay rebuilds it.
        replay_tokens: The last of the tokens that run once more for that; else 0.
    """

    num_tokens: int
    blocks: tuple[Buffer, ...]
    digests: tuple[bytes, ...]
    state: Buffer
    replay_tokens: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes read."""
        return sum(len(block) for block in self.blocks) + len(self.state)


class PrefixLoader:
    """Reads prefixes for one rank.

    Args:
        window_replay_tokens: Tokens that rebuild the state at a block end; None: it cannot be.
    """

    def __init__(
        self,
        store: KvStore,
        *,
        block_tokens: int,
        window_replay_tokens: int | None,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._block_tokens = block_tokens
        self._window_replay_tokens = window_replay_tokens
        self._metrics = metrics

    def load(self, block_hashes: Sequence[bytes], num_tokens: int) -> LoadedPrefix | None:
        """Returns the verified prefix that saves most, None if nothing usable is stored.

        Args:
            block_hashes: Names of all full blocks of the prompt.
            num_tokens: Tokens of the prompt, at least 1; the last one is always computed.

        Raises:
            kvstore.errors.KvStoreError: The store itself fails.
        """
        usable = min(len(block_hashes), (num_tokens - 1) // self._block_tokens)
        with_state = usable
        for _ in range(MAX_TRIES):
            with current().child("prefill.lookup") as span:
                match = self._look_up(block_hashes[:usable], with_state)
                plan = plan_resume(
                    match,
                    block_tokens=self._block_tokens,
                    window_replay_tokens=self._window_replay_tokens,
                )
                span.set(
                    {
                        "disagg.kv.hit_blocks": plan.num_blocks,
                        "disagg.kv.miss_blocks": usable - plan.num_blocks,
                    }
                )
            self._count_lookup(usable, match.num_blocks, plan.num_blocks)
            if plan.num_blocks == 0:
                break
            try:
                with current().child("prefill.load_prefix") as span:
                    prefix = self._read(block_hashes[: plan.num_blocks], plan)
                    span.set(
                        {
                            "disagg.cached_tokens": prefix.num_tokens - prefix.replay_tokens,
                            "disagg.kv.blocks": len(prefix.blocks),
                            "disagg.kv.bytes": prefix.num_bytes,
                        }
                    )
                    if span.is_recording:
                        self._link_writers(span, block_hashes[: plan.num_blocks])
                return prefix
            except (BlockMissing, BlockCorrupt) as error:
                self._metrics.count("disagg_prefix_fallback_total", cause=error.cause)
                if isinstance(error, BlockCorrupt):
                    self._metrics.count("disagg_kv_checksum_failures_total", component=error.kind)
                logger.warning("stored prefix not usable, trying the next best: %s", error)
                if error.kind == "state":
                    # The blocks are as good as they were: a replay at their end may be the best.
                    with_state = plan.num_blocks - 1
                else:
                    usable = error.index
        return None

    def _look_up(self, block_hashes: Sequence[bytes], with_state: int) -> PrefixMatch:
        """What is stored, without the states behind more than `with_state` blocks."""
        match = self._store.lookup(block_hashes)
        if match.resume_blocks <= with_state:
            return match
        # A state that could not be read is still said to be there.
        shorter = self._store.lookup(block_hashes[:with_state])
        return match_prefix(match.num_blocks, shorter.resume_blocks, self._block_tokens)

    def _link_writers(self, span: Span, block_hashes: Sequence[bytes]) -> None:
        """Points to the spans that wrote a prefix, as far as they are known."""
        try:
            contexts = self._store.writers(block_hashes, MAX_PREFIX_LINKS)
        except KvStoreError as error:
            logger.debug("the writers of a prefix are not known: %s", error)
            return
        for context in contexts:
            span.link(parse_traceparent(context), "kv_prefix_reuse")

    def _count_lookup(self, num_asked: int, num_found: int, num_usable: int) -> None:
        """Blocks behind the last place to resume from are there, but of no use."""
        for result, number in (
            ("hit", num_usable),
            ("partial", num_found - num_usable),
            ("miss", num_asked - num_found),
        ):
            self._metrics.count("disagg_kv_lookup_blocks_total", number, result=result)

    def _read(self, block_hashes: Sequence[bytes], plan: ResumePlan) -> LoadedPrefix:
        state: Buffer = b""
        if not plan.replay_tokens:
            state = self._store.get_state(block_hashes[-1])
        blocks = tuple(self._store.get_blocks(block_hashes))
        return LoadedPrefix(
            num_tokens=plan.num_tokens,
            blocks=blocks,
            digests=tuple(self._digest(block) for block in blocks),
            state=state,
            replay_tokens=plan.replay_tokens,
        )

    def _digest(self, payload: memoryview) -> bytes:
        """The digest that `put_block` returned to whoever wrote this payload."""
        size = self._store.config.segment_bytes
        segments = [payload[start : start + size] for start in range(0, len(payload), size)]
        return combine_digests([payload_digest(segment) for segment in segments])
