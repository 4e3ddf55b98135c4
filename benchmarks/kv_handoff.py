"""Hand-offs of states the size of the V4.1 model, from the last computed token to verified memory.

Without overlap everything waits for the prompt's end: publish all blocks, commit, open, fetch.
With overlap blocks were published while the prompt computed and fetched as they came, so that only
the tail is left: commit, open, fetch the tail.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.kv_workload import BLOCK_TOKENS, open_client, random_payloads
from kvstore import HandoffDraft, KvStore, Prefetched, TokenChain
from kvstore.inspection import flush

BYTES_PER_TOKEN = 890
STATE_BYTES = 40 * 67_584  # window rows of 40 layers
_ROUNDS = 9


def measure_handoffs(url: str, num_tokens: int, seed: int) -> dict[str, float]:
    """Medians in milliseconds of one prompt length, and the bytes of its state."""
    writer, reader = open_client(url), open_client(url)
    num_blocks, rest = divmod(num_tokens, BLOCK_TOKENS)
    payloads = random_payloads(num_blocks, BLOCK_TOKENS * BYTES_PER_TOKEN, seed)
    state = random_payloads(1, STATE_BYTES, seed + 1)[0]
    times: dict[str, list[float]] = {}

    def note(name: str, start: float) -> float:
        now = time.perf_counter()
        times.setdefault(name, []).append(1e3 * (now - start))
        return now

    for number in range(_ROUNDS if num_tokens < 100_000 else 3):
        # A prompt of its own, so that no block is there already.
        tokens = [(7919 * idx + number) % 129_280 for idx in range(num_tokens)]
        begin = time.perf_counter()
        chain = TokenChain.of(tokens, BLOCK_TOKENS)
        note("chain_ms", begin)
        for overlap in (False, True) if number % 2 else (True, False):
            prefetched = Prefetched()
            begin = start = time.perf_counter()
            digests = writer.put_blocks(zip(chain.hashes, payloads, strict=True), attempt=1)
            if overlap:
                reader.prefetch(chain.hashes, prefetched)
                begin = time.perf_counter()
            else:
                note("publish_ms", start)
            draft = HandoffDraft(
                request_id=f"{num_tokens} {number} {overlap}",
                attempt=1,
                num_tokens=num_tokens,
                block_hashes=chain.hashes,
                block_digests=digests,
                tail_tokens=tokens[num_tokens - rest :],
                tail_kv=bytes(rest * BYTES_PER_TOKEN),
                tail_state=state,
                first_token=1,
            )
            prefix = "overlap_" if overlap else ""
            start = time.perf_counter()
            ticket = writer.commit(draft)
            start = note(f"{prefix}commit_ms", start)
            with reader.open_ticket(ticket, chain) as handoff:
                start = note(f"{prefix}open_ms", start)
                fetched = handoff.fetch(prefetched=prefetched)
                note(f"{prefix}fetch_ms", start)
                note(f"{prefix}total_ms", begin)
            assert fetched.num_bytes == sum(map(len, payloads)) + len(state) + len(draft.tail_kv)
            del fetched, prefetched
            writer.abort(ticket.handoff_id)
            _forget(writer)
    writer.close()
    reader.close()
    medians = {name: round(statistics.median(values), 3) for name, values in times.items()}
    best = {f"{name}_best": round(min(times[name]), 3) for name in ("total_ms", "overlap_total_ms")}
    num_bytes = num_blocks * BLOCK_TOKENS * BYTES_PER_TOKEN + STATE_BYTES
    return {**medians, **best, "num_bytes": num_bytes}


def _forget(store: KvStore) -> None:
    """Empties the server between two hand-offs, so that the next one writes every block."""
    flush(store._backend, None)
