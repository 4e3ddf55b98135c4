"""The store as services see it: prefixes, blocks, hand-offs, audit.

    publish:  put_block / put_state ... commit(draft) -> Ticket
    fetch:    with open_ticket(ticket, token_ids) as reader: reader.fetch(); reader.release()
    reuse:    lookup(hashes) -> PrefixMatch; get_blocks, get_state

Moves opaque bytes: it has never heard of a tensor. Synchronous and thread-safe; services call it in
threads. All writes are keyed by content or by request and attempt, so repeating one is harmless.

Invariant: bytes that leave this module were verified against their name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvstore.backends.base import Allocate, Backend, BackendStatistics, Facts
from kvstore.backends.files import FilesBackend
from kvstore.backends.keyed import KeyedBackend, keyed_fingerprint, read_key
from kvstore.backends.memory import MemoryBackend
from kvstore.backends.redis import RedisBackend
from kvstore.buffers import Buffer, new_buffer
from kvstore.config import KvStoreConfig, StoreUrl, parse_url, with_files
from kvstore.errors import StoreUrlError
from kvstore.events.announcer import Relay, StoreListener, removals
from kvstore.handoffs.handoff import Handoffs
from kvstore.handoffs.leases import JanitorReport, LeaseRecord, classify, sweep
from kvstore.handoffs.prefetched import Prefetched
from kvstore.handoffs.reader import HandoffReader, ReaderParts
from kvstore.keys import FINGERPRINT_BYTES, HASH_BYTES, Component
from kvstore.lookup import PrefixMatch, candidate_ends, count_contiguous, match_prefix
from kvstore.payloads.freshness import Refreshed
from kvstore.payloads.payloads import Payloads
from kvstore.payloads.reading import ReadRequest, read, read_with_digests
from kvstore.payloads.sealing import PayloadRef, block_refs
from kvstore.payloads.writers import note_writer, noted, writers_of
from kvstore.pressure import Pressure, may_be_pressed, measure_pressure
from kvstore.statistics import Counters, Observer, StoreStatistics, counted
from kvstore.ticket import HandoffDraft, Ticket, TokenChain
from kvstore.tracing import StoreSpans

Clock = Callable[[], float]
"""Monotonic seconds."""

_FIRST_STATE_BATCH = 16


def open_store(
    url: str,
    config: KvStoreConfig,
    *,
    fingerprint: bytes,
    clock: Clock,
    listener: StoreListener | None = None,
) -> KvStore:
    """Opens a store by URL. Connects at the first call, so an unreachable store is an error there.

    Args:
        url: See `kvstore.config.parse_url`. `memory://` is a new, private store.
        config: Settings.
        fingerprint: Layout fingerprint, 8 bytes. `KvStore.fingerprint` differs from it where the
            stored bytes do: with keyed tags.
        clock: Monotonic seconds.
        listener: Told about blocks that come and go, for KV events.

    Raises:
        StoreUrlError: The URL names no known backend.
    """
    backend = open_backend(url, config, clock)
    if key_file := with_files(config, parse_url(url)).integrity_key_file:
        fingerprint = keyed_fingerprint(fingerprint, read_key(key_file))
    return KvStore(
        backend,
        config,
        fingerprint=fingerprint,
        clock=clock,
        listener=listener,
        spans=StoreSpans(parse_url(url)),
    )


def open_backend(url: str, config: KvStoreConfig, clock: Clock) -> Backend:
    """The backend a URL names; several `KvStore` may share one."""
    parsed = parse_url(url)
    config = with_files(config, parsed)
    backend = _BACKENDS[parsed.scheme](parsed, config, clock)
    if not config.integrity_key_file:
        return backend
    try:
        return KeyedBackend(backend, read_key(config.integrity_key_file))
    except ValueError as error:
        raise StoreUrlError(str(error)) from error


def _memory(_url: StoreUrl, _config: KvStoreConfig, clock: Clock) -> MemoryBackend:
    return MemoryBackend(clock)


def _files(url: StoreUrl, _config: KvStoreConfig, _clock: Clock) -> FilesBackend:
    return FilesBackend(url)


def _redis(url: StoreUrl, config: KvStoreConfig, _clock: Clock) -> RedisBackend:
    return RedisBackend(url, config)


_BACKENDS: dict[str, Callable[[StoreUrl, KvStoreConfig, Clock], Backend]] = {
    "file": _files,
    "memory": _memory,
    "redis": _redis,
    "redis+cluster": _redis,
    "rediss": _redis,
    "rediss+cluster": _redis,
    "redis+sentinel": _redis,
    "rediss+sentinel": _redis,
    "unix": _redis,
}


class KvStore:
    """Blocks and hand-offs of one layout. Thread-safe.

    Args:
        backend: Where the bytes are.
        config: Settings.
        fingerprint: Layout fingerprint, 8 bytes; part of every name.
        clock: Monotonic seconds.
        listener: Told about blocks that come and go.
        spans: Of calls to the store; those of a private one if absent.
    """

    def __init__(
        self,
        backend: Backend,
        config: KvStoreConfig,
        *,
        fingerprint: bytes,
        clock: Clock,
        listener: StoreListener | None = None,
        spans: StoreSpans | None = None,
    ) -> None:
        self.spans = spans or StoreSpans()
        if len(fingerprint) != FINGERPRINT_BYTES:
            raise ValueError(
                f"fingerprint has {len(fingerprint)} bytes, a layout fingerprint has 8"
            )
        self._backend = backend
        self._config = config
        self._fingerprint = bytes(fingerprint)
        self._clock = clock
        self._listener = Relay(listener)
        self._counters = Counters(clock)
        self._payloads = Payloads(backend, config, self._fingerprint, self._counters)
        parts = ReaderParts(
            leases=backend,
            payloads=self._payloads,
            config=config,
            clock=clock,
            counters=self._counters,
            listener=self._listener,
            spans=self.spans,
        )
        self._refreshed = Refreshed(config.refresh_s)
        self._published = Refreshed(config.refresh_s)
        self._handoffs = Handoffs(parts, self._fingerprint, self._published)

    @property
    def config(self) -> KvStoreConfig:
        """The settings this store was opened with."""
        return self._config

    @property
    def fingerprint(self) -> bytes:
        """Layout fingerprint under which it stores, 8 bytes; what members announce."""
        return self._fingerprint

    def listen(self, listener: StoreListener) -> None:
        """Tells a listener about blocks from now on; it is closed with this store."""
        self._listener.listener = listener

    def observe(self, observer: Observer) -> None:
        """Tells an observer what this client does from now on."""
        self._counters.observer = observer

    # Prefixes

    def lookup(self, hashes: Sequence[bytes]) -> PrefixMatch:
        """Longest stored prefix of a chain and where it can be resumed. Advisory.

        Args:
            hashes: Chain hashes of the full blocks, first block first.
        """
        self._check_hashes(hashes)
        self._counters.add(lookups=1)
        with counted(self._counters, "lookup"):
            num_blocks = count_contiguous(self._payloads.exist(Component.KV, hashes))
            resume_blocks = 0
            for ends in candidate_ends(num_blocks, _FIRST_STATE_BATCH):
                states = [hashes[end - 1] for end in ends]
                present = self._payloads.exist(Component.STATE, states)
                if any(present):
                    resume_blocks = ends[present.index(True)]
                    break
        return match_prefix(num_blocks, resume_blocks, self._config.block_tokens)

    def get_blocks(
        self, hashes: Sequence[bytes], allocate: Allocate = new_buffer
    ) -> list[memoryview]:
        """Verified `kv` payloads of blocks.

        Args:
            hashes: Their chain hashes.
            allocate: Memory for each payload, with 64 bytes in front for its header.

        Raises:
            BlockMissing, BlockCorrupt: By position; the key of a corrupt block was quarantined.
        """
        self._check_hashes(hashes)
        with (
            counted(self._counters, "read"),
            removals(self._listener, hashes),
            self.spans.begin("kvstore.get", "GET") as span,
        ):
            refs = block_refs(hashes)
            payloads = read(self._payloads, [ReadRequest(ref) for ref in refs], allocate)
            self._refresh(refs)
            if span.is_recording:
                span.set(
                    {"disagg.kv.blocks": len(refs), "disagg.kv.bytes": sum(map(len, payloads))}
                )
        return payloads

    def get_state(self, block_hash: bytes, allocate: Allocate = new_buffer) -> memoryview:
        """Verified boundary state at the end of a block; errors as `get_blocks`."""
        self._check_hashes([block_hash])
        with counted(self._counters, "read"), self.spans.begin("kvstore.get", "GET") as span:
            refs = block_refs([block_hash], Component.STATE)
            payload = read(self._payloads, [ReadRequest(refs[0])], allocate)[0]
            self._refresh(refs)
            span.set({"disagg.kv.bytes": len(payload)})
        return payload

    # Publishing

    def put_block(self, block_hash: bytes, payload: Buffer, *, attempt: int) -> bytes:
        """Writes the `kv` payload of a full block unless it is there already.

        Args:
            block_hash: Its chain hash, 32 bytes.
            payload: Its bytes; read during the call only.
            attempt: Attempt of the writer; kept in the index record of a payload in segments.

        Returns:
            Digest of the payload, 16 bytes, for `HandoffDraft.block_digests`.

        Raises:
            BlockCorrupt: Other bytes were stored under this name (reason `conflict`); they were
                quarantined and writing again succeeds.
            StoreFull, StoreDown: Nothing is readable that is not complete.
        """
        return self._put(Component.KV, [(block_hash, payload)], attempt)[0]

    def put_blocks(self, blocks: Iterable[tuple[bytes, Buffer]], *, attempt: int) -> list[bytes]:
        """`put_block` for several blocks over one connection; digests in the same order."""
        return self._put(Component.KV, list(blocks), attempt)

    def put_state(self, block_hash: bytes, payload: Buffer, *, attempt: int) -> bytes:
        """Writes the boundary state at the end of a block; as `put_block`."""
        return self._put(Component.STATE, [(block_hash, payload)], attempt)[0]

    # Traces

    def note_writer(self, hashes: Sequence[bytes], first: int, context: str) -> None:
        """Leaves a trace context beside some of the blocks [first, end) of a chain; advisory.

        Args:
            hashes: Chain hashes of all blocks up to the end.
            context: `traceparent` of the span that wrote them.
        """
        names = [hashes[idx] for idx in noted(first, len(hashes))]
        if names:
            life_ms = int(self._config.cache_ttl_s * 1000)
            note_writer(self._payloads, names, context, life_ms)

    def writers(self, hashes: Sequence[bytes], limit: int) -> list[str]:
        """Trace contexts of the newest writers of a chain, each once, newest first; advisory."""
        return writers_of(self._payloads, hashes, limit)

    # Hand-offs

    def begin_attempt(self, request_id: str, attempt: int) -> None:
        """Makes tickets of older attempts of a request stale, before this one has a ticket.

        Raises:
            StaleAttempt: A newer attempt began already.
            BlockCorrupt: The record of attempts was damaged; start the next attempt.
        """
        with counted(self._counters, "reserve"):
            self._handoffs.begin_attempt(request_id, attempt)

    def commit(self, draft: HandoffDraft) -> Ticket:
        """Writes the tail, then ticket body and lease in one step; errors as `Handoffs.commit`."""
        with (
            counted(self._counters, "commit"),
            removals(self._listener, draft.block_hashes),
            self.spans.begin("kvstore.commit", "EVALSHA") as span,
        ):
            span.set(
                {
                    "disagg.kv.blocks": len(draft.block_hashes),
                    "disagg.kv.bytes": len(draft.tail_kv) + len(draft.tail_state),
                }
            )
            ticket = self._handoffs.commit(draft)
        self._listener.blocks_stored(draft.block_hashes, self._config.block_tokens, draft.token_ids)
        return ticket

    def open_ticket(
        self, ticket: Ticket, tokens: Sequence[int] | TokenChain, salt: str = ""
    ) -> HandoffReader:
        """Verifies a ticket against the caller's tokens and takes its lease.

        Args:
            ticket: As it came.
            tokens: Exactly the tokens whose KV it must hold (`ticket.num_tokens` of them), or their
                chain, which takes a millisecond per 10,000 tokens to compute.
            salt: Tenant salt of the request; a chain has its own.

        Raises:
            LayoutDiffers, TicketInvalid, StaleAttempt, LeaseLost: The ticket is refused.
            BlockMissing, BlockCorrupt: Its body is gone or wrong.
        """
        with counted(self._counters, "lease"), self.spans.begin("kvstore.lease", "EVALSHA"):
            return self._handoffs.open(ticket, tokens, salt)

    def prefetch(
        self, hashes: Sequence[bytes], into: Prefetched, allocate: Allocate = new_buffer
    ) -> None:
        """Reads blocks of a hand-off that is not committed yet; see `HandoffReader.fetch`.

        Raises:
            BlockMissing, BlockCorrupt: As `get_blocks`; nothing of this call is kept then.
        """
        self._check_hashes(hashes)
        names = into.missing(hashes)
        with counted(self._counters, "read"), removals(self._listener, names):
            requests = [ReadRequest(ref) for ref in block_refs(names)]
            into.add(names, read_with_digests(self._payloads, requests, allocate))

    def abort(self, handoff_id: str) -> bool:
        """Deletes a committed hand-off whoever holds it; False if there is none (any more)."""
        with counted(self._counters, "abort"):
            return self._handoffs.abort(handoff_id)

    # Upkeep

    def audit(self) -> list[LeaseRecord]:
        """Every hand-off in the store, of any layout, with owner, age and state. Scans all keys."""
        with counted(self._counters):
            return [classify(entry) for entry in self._backend.audit()]

    def janitor(self) -> JanitorReport:
        """Reaps hand-offs that nobody will release. Safe beside readers and other janitors."""
        with counted(self._counters):
            report = sweep(self._backend)
        self._counters.add(expired=report.num_expired)
        return report

    def statistics(self) -> StoreStatistics:
        """Counts of this client since it was opened. No I/O."""
        return self._counters.snapshot()

    def ping(self) -> BackendStatistics:
        """What the server says of itself. Raises StoreDown."""
        with counted(self._counters):
            return self._backend.statistics()

    def facts(self) -> list[Facts]:
        """What each server says of itself, for `kvstore.suitability`. Raises StoreDown."""
        with counted(self._counters):
            return self._backend.facts()

    def pressure(self, incoming_bytes: int = 0) -> Pressure:
        """How full the server is, with so many bytes of hand-offs more.

        Bytes of a hand-off are those of its tail and of the blocks that were written for it. They
        are counted, by a scan of all keys, only where there is enough in use for them to matter.
        """
        with counted(self._counters):
            server = self._backend.statistics()
            handoff_bytes = 0
            if may_be_pressed(server.used_bytes + incoming_bytes, server.max_bytes):
                handoff_bytes = sum(entry.num_bytes for entry in self._backend.audit())
        return measure_pressure(
            used_bytes=server.used_bytes,
            max_bytes=server.max_bytes,
            handoff_bytes=handoff_bytes,
            incoming_bytes=incoming_bytes,
            evicts=server.evicts,
        )

    def close(self) -> None:
        """Drops the connections and closes the listener. Twice is harmless."""
        self._listener.close()
        self._backend.close()

    def _put(
        self, component: Component, blocks: Sequence[tuple[bytes, Buffer]], attempt: int
    ) -> list[bytes]:
        names = [name for name, _ in blocks]
        self._check_hashes(names)
        with counted(self._counters, "write"), removals(self._listener, names):
            sealed = (
                self._payloads.seal(PayloadRef(component, bytes(name), idx), payload)
                for idx, (name, payload) in enumerate(blocks)
            )
            life_ms = int(self._config.handoff_ttl_s * 1000)
            written = self._payloads.write(sealed, life_ms, attempt=attempt)
            self._published.note([payload.ref for payload in written], self._clock())
        return [payload.digest for payload in written]

    def _refresh(self, refs: Sequence[PayloadRef]) -> None:
        due = self._refreshed.take_due(refs, self._clock())
        if due:
            self._payloads.extend(due, int(self._config.cache_ttl_s * 1000))

    def _check_hashes(self, hashes: Sequence[bytes]) -> None:
        sizes = list(map(len, hashes))
        if sizes.count(HASH_BYTES) != len(sizes):
            idx = next(idx for idx, size in enumerate(sizes) if size != HASH_BYTES)
            raise ValueError(f"block hash {idx} has {sizes[idx]} bytes, 32 are needed")
