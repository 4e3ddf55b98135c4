"""One prompt's path through a prefill rank: look up, load, compute, publish, commit.

Everything a prompt holds (its place in the fence, bytes in flight, the engine's handle, the
publication) is a context manager of one task, so leaving the path by any door frees it. Knows no
wire: the face translates requests, events and errors.

Order of events: Admitted, PrefixHit if a stored prefix was loaded, ChunkDone for each chunk that is
not the last, FirstToken, Committed. Without an error Committed is always the last one. Where they
are asked for, BlocksStored come at any point between Admitted and Committed.
"""

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from disagg import block_hash, wire
from engine.async_engine import AsyncEngine, RequestHandle
from engine.handoff import KvLayout, SequenceImage
from engine.request import (
    ChunkDone,
    EngineRequest,
    RequestFailed,
    RequestFinished,
    SamplingParams,
    TokenOut,
)
from kvstore.store import KvStore
from kvstore.ticket import Ticket
from prefill_service.boundary import BoundaryPolicy
from prefill_service.prefix import LoadedPrefix, PrefixLoader
from prefill_service.publisher import Publication, PublishPlan, handoff_bytes
from prefill_service.stored import BlocksStored, StoredBlocks, reported
from prefill_service.tracing import ComputeSpans
from runtime.attempts import AttemptFence
from runtime.budget import Budget, Grant
from runtime.clock import Clock
from runtime.errors import Bug, FieldViolation, InvalidRequest, Reason
from runtime.metrics import Metrics
from runtime.offload import clean_up, offload
from runtime.telemetry import Span, current


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest:
    """A prompt to compute.

    Args:
        request_id: Of the caller.
        attempt: From 1.
        token_ids: The prompt, then what an earlier attempt generated.
        num_generated: How many at the end of `token_ids` were generated.
        sampling: How to choose the first token.
        cache_salt: Tenant salt of the block chain.
        bypass_prefix: Use nothing that is stored: compute everything anew, and replace what is
            damaged.
        traceparent: Trace context that the ticket carries on.
        report_stored: Emit BlocksStored, for a reader that starts before the ticket.
    """

    request_id: str
    attempt: int
    token_ids: tuple[int, ...]
    num_generated: int
    sampling: SamplingParams
    cache_salt: str = ""
    bypass_prefix: bool = False
    traceparent: str = ""
    report_stored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The prompt was accepted behind `queue_length` others."""

    queue_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHit:
    """A stored prefix was loaded and verified.

    Args:
        cached_tokens: Its tokens that need no computing.
        replayed_tokens: Its tokens behind those, whose entries are stored and which run once more
            to rebuild the windows; 0 where the boundary state was stored, too.
        num_bytes: Bytes read.
        load_s: Seconds of look-up and load.
    """

    cached_tokens: int
    replayed_tokens: int
    num_bytes: int
    load_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """The first token, and how long the prompt waited and computed."""

    token: TokenOut
    queue_s: float
    compute_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The hand-off is readable; no ticket if the first token ended the generation."""

    ticket: Ticket | None
    published_bytes: int
    commit_s: float


PrefillEvent = Admitted | PrefixHit | ChunkDone | FirstToken | Committed | BlocksStored
Emit = Callable[[PrefillEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillStatistics:
    """What a path holds at one moment; all zero at rest."""

    running: int
    leases: int
    bytes_in_flight: int
    waiting_for_bytes: int


class PrefillPath:
    """The path of all prompts of one rank.

    Args:
        executor: Threads for what a prompt waits for: look-ups, loads, commits.
        writers: Threads for blocks and states; apart, so that no prompt waits behind the blocks of
            another.
    """

    def __init__(
        self,
        *,
        engine: AsyncEngine,
        store: KvStore,
        layout: KvLayout,
        policy: BoundaryPolicy,
        budget: Budget,
        executor: Executor,
        writers: Executor,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._engine = engine
        self._store = store
        self._layout = layout
        self._policy = policy
        self._budget = budget
        self._executor = executor
        self._writers = writers
        self._clock = clock
        self._metrics = metrics
        self._sent = metrics.recorder("disagg_stream_messages_total", role="prefill")
        self._fence = AttemptFence()
        self._unclaimed = 0  # committed hand-offs whose ticket is not yet with the caller
        self._prefixes = PrefixLoader(
            store,
            block_tokens=layout.block_tokens,
            window_replay_tokens=layout.window_replay_tokens,
            metrics=metrics,
        )

    async def run(self, request: PromptRequest, emit: Emit) -> None:
        """Takes a prompt from the caller to a committed ticket.

        Args:
            request: The prompt.
            emit: Receives the events in order; its failure ends the path.

        Raises:
            runtime.errors.DisaggError, engine.request.EngineError, kvstore.errors.KvStoreError:
                Nothing is left behind in the engine or the store.
        """
        check(request)
        emit = self._counted(emit)
        engine_request = EngineRequest(
            request_id=f"{request.request_id}#{request.attempt}",
            token_ids=request.token_ids,
            num_generated=request.num_generated,
            sampling=request.sampling,
            stop_after_first=True,
            arrival=self._clock.now(),
        )
        self._engine.check(engine_request)
        queue_length = self._engine.statistics().waiting + self._budget.statistics().num_waiting
        num_bytes = handoff_bytes(self._layout, len(request.token_ids), self._policy)
        with (
            self._fence.enter(request.request_id, request.attempt),
            await self._budget.take(num_bytes) as grant,
        ):
            await emit(Admitted(queue_length=queue_length))
            began = self._clock.now()
            hashes, prefix = await self._load(request)
            if prefix is not None:
                self._phase("prefix_load", self._clock.now() - began)
                await emit(
                    PrefixHit(
                        cached_tokens=prefix.num_tokens - prefix.replay_tokens,
                        replayed_tokens=prefix.replay_tokens,
                        num_bytes=prefix.num_bytes,
                        load_s=self._clock.now() - began,
                    )
                )
            self._count_tokens(request, prefix)
            cached_tokens = 0 if prefix is None else prefix.num_tokens - prefix.replay_tokens
            current().set({"disagg.cached_tokens": cached_tokens})
            stored = StoredBlocks(0 if prefix is None else len(prefix.digests))
            if not (request.report_stored and hashes):
                stored.close()
            async with (
                self._publication(request, hashes, prefix, grant, stored) as publication,
                reported(stored, emit) as emit_in_turn,
            ):
                image = None if prefix is None else _image(prefix)
                handle = self._engine.submit(
                    replace(engine_request, image=image, export=publication)
                )
                del prefix, image  # the engine has it, and drops it once it is on the device
                first = await self._compute(handle, cached_tokens, publication, emit_in_turn)
                if not stored.num_reported:
                    stored.close()  # a reader that starts now gains nothing over the ticket
                await self._commit(request, first, publication, stored, emit_in_turn)

    def statistics(self) -> PrefillStatistics:
        """What is held now."""
        budget = self._budget.statistics()
        return PrefillStatistics(
            running=len(self._fence),
            leases=self._unclaimed,
            bytes_in_flight=budget.held,
            waiting_for_bytes=budget.num_waiting,
        )

    def _counted(self, emit: Emit) -> Emit:
        async def counting(event: PrefillEvent) -> None:
            await emit(event)
            self._sent(1)

        return counting

    def _phase(self, phase: str, seconds: float) -> None:
        self._metrics.observe("disagg_phase_duration_seconds", max(0.0, seconds), phase=phase)

    async def _load(self, request: PromptRequest) -> tuple[tuple[bytes, ...], LoadedPrefix | None]:
        """Block hashes of the prompt and the stored prefix; hashing is worth a thread, too."""

        def load() -> tuple[tuple[bytes, ...], LoadedPrefix | None]:
            # From here on a ticket of an older attempt is refused by every reader.
            self._store.begin_attempt(request.request_id, request.attempt)
            hashes = tuple(
                block_hash.chain(
                    request.token_ids, self._layout.block_tokens, salt=request.cache_salt
                )
            )
            if request.bypass_prefix:
                self._metrics.count("disagg_prefix_fallback_total", cause="bypassed")
                return hashes, None
            return hashes, self._prefixes.load(hashes, len(request.token_ids))

        return await offload(self._executor, load)

    def _publication(
        self,
        request: PromptRequest,
        hashes: tuple[bytes, ...],
        prefix: LoadedPrefix | None,
        grant: Grant,
        stored: StoredBlocks,
    ) -> Publication:
        block_tokens = self._layout.block_tokens
        plan = PublishPlan(
            request_id=request.request_id,
            attempt=request.attempt,
            num_tokens=len(request.token_ids),
            block_tokens=block_tokens,
            block_hashes=hashes,
            tail_tokens=request.token_ids[len(hashes) * block_tokens :],
            salt=request.cache_salt,
            stored_digests=() if prefix is None else prefix.digests,
            is_state_stored=prefix is not None and not prefix.replay_tokens,
            block_token_ids=request.token_ids[: len(hashes) * block_tokens],
            distrusts_store=request.bypass_prefix,
        )
        return Publication(
            plan,
            store=self._store,
            policy=self._policy,
            writers=self._writers,
            executor=self._executor,
            grant=grant,
            metrics=self._metrics,
            stored=stored,
        )

    def _count_tokens(self, request: PromptRequest, prefix: LoadedPrefix | None) -> None:
        num_loaded = 0 if prefix is None else prefix.num_tokens
        num_replayed = 0 if prefix is None else prefix.replay_tokens
        num_hit = num_loaded - num_replayed
        self._metrics.count("disagg_prompt_tokens_total", num_hit, source="store_hit")
        self._metrics.count("disagg_prompt_tokens_total", num_replayed, source="replayed")
        self._metrics.count("vllm:prefix_cache_queries_total", len(request.token_ids))
        self._metrics.count("vllm:prefix_cache_hits_total", 0)
        self._metrics.count("vllm:external_prefix_cache_queries_total", len(request.token_ids))
        self._metrics.count("vllm:external_prefix_cache_hits_total", num_hit)
        num_computed = len(request.token_ids) - num_loaded
        self._metrics.count("disagg_prompt_tokens_total", num_computed, source="computed")

    async def _compute(
        self, handle: RequestHandle, cached_tokens: int, publication: Publication, emit: Emit
    ) -> TokenOut:
        """Runs the prompt through the engine; the first token, after everything was saved."""
        submitted = self._clock.now()
        async with handle:
            with ComputeSpans(handle, submitted, cached_tokens) as spans:
                return await self._first_token(handle, submitted, spans, publication, emit)

    async def _first_token(
        self,
        handle: RequestHandle,
        submitted: float,
        spans: ComputeSpans,
        publication: Publication,
        emit: Emit,
    ) -> TokenOut:
        async for event in handle:
            publication.raise_if_failed()
            if isinstance(event, ChunkDone):
                spans.chunk(event.computed_tokens)
                await emit(event)
            elif isinstance(event, TokenOut):
                now = self._clock.now()
                spans.chunk(publication.num_tokens)
                started = submitted if handle.started_at is None else handle.started_at
                self._phase("prefill_queue", started - submitted)
                self._phase("prefill", now - started)
                await emit(
                    FirstToken(token=event, queue_s=started - submitted, compute_s=now - started)
                )
                return event
            elif isinstance(event, RequestFailed):
                raise event.error
            elif isinstance(event, RequestFinished):
                raise Bug(f"prefill of {event.request_id} ended by {event.finish_reason}")
        raise Bug(f"prefill of {handle.request_id} ended without a token")

    async def _commit(
        self,
        request: PromptRequest,
        first: TokenOut,
        publication: Publication,
        stored: StoredBlocks,
        emit: Emit,
    ) -> None:
        began = self._clock.now()
        if first.finish_reason is not None:
            # Nobody will decode, but the blocks are worth keeping for the next prompt.
            await publication.wait_written()
            publication.spans.end()
            stored.close()
            await self._hand_out(None, publication, began, emit)
            return
        with current().child("prefill.commit") as span:
            await self._commit_handoff(request, first, publication, stored, emit, span)

    async def _commit_handoff(
        self,
        request: PromptRequest,
        first: TokenOut,
        publication: Publication,
        stored: StoredBlocks,
        emit: Emit,
        span: Span,
    ) -> None:
        began = self._clock.now()
        await publication.wait_written()
        self._phase("publish", self._clock.now() - began)
        written = self._clock.now()
        # Whoever takes the hand-off over points back to this span.
        context = str(span.context) if span.is_recording else request.traceparent
        ticket = await publication.commit(first_token=first.token_id, traceparent=context)
        span.set({"disagg.handoff_id": ticket.handoff_id})
        self._phase("commit", self._clock.now() - written)
        stored.close()
        self._unclaimed += 1
        try:
            await self._hand_out(ticket, publication, began, emit)
        except BaseException:
            # The ticket reached nobody, so nobody else can release what it holds.
            await clean_up(self._executor, lambda: self._store.abort(ticket.handoff_id))
            raise
        finally:
            self._unclaimed -= 1

    async def _hand_out(
        self, ticket: Ticket | None, publication: Publication, began: float, emit: Emit
    ) -> None:
        await emit(
            Committed(
                ticket=ticket,
                published_bytes=publication.published_bytes,
                commit_s=self._clock.now() - began,
            )
        )


def check(request: PromptRequest) -> None:
    """Refuses what no engine has to see; the engine checks tokens, lengths and sampling itself.

    Raises:
        InvalidRequest: With the field, its value and what would be accepted.
    """
    problem = wire.request_id_problem(request.request_id)
    if problem is not None:
        raise _bad("request_id", problem)
    if request.attempt < 1:
        raise _bad("attempt", f"attempt is {request.attempt}: attempts count from 1")
    num_tokens = len(request.token_ids)
    if num_tokens == 0:
        raise _bad("token_ids", "token_ids is empty: give at least one token")
    if request.num_generated >= num_tokens:
        raise _bad(
            "num_generated",
            f"num_generated is {request.num_generated} of {num_tokens} token_ids: a prompt of at "
            "least one token has to stand before what was generated",
        )
    if request.sampling.max_tokens <= request.num_generated:
        raise _bad(
            "sampling.max_tokens",
            f"sampling.max_tokens is {request.sampling.max_tokens} with {request.num_generated} "
            "tokens generated: nothing is left to generate, so there is nothing to prefill for",
        )


def _bad(field: str, description: str) -> InvalidRequest:
    return InvalidRequest(
        description,
        reason=Reason.BAD_REQUEST,
        violations=(FieldViolation(field=field, description=description),),
    )


def _image(prefix: LoadedPrefix) -> SequenceImage:
    begin = prefix.num_tokens - prefix.replay_tokens
    return SequenceImage(
        num_tokens=prefix.num_tokens,
        blocks=prefix.blocks,
        partial=b"",
        state=prefix.state,
        replay_from=begin if prefix.replay_tokens else None,
    )
