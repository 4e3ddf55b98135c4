"""One request from admission to last token: the whole journey, and the only place of retries.

`Pipeline.run` is the story: a place to run, then attempts until the answer is complete. An attempt
(`journey.attempt`) is a pair of members with a slot on decode, prefill up to the committed ticket,
decode up to the last token. Whatever fails leaves its attempt by an exception; whether another one
follows is decided in one place (`journey.recovery`).

Everything held (place, weight on members, slot, calls, hand-off) is held by a context manager, so
an end, an error, a cancellation and a deadline all give it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from balancer.journey.attempt import Attempts, Handoffs
from balancer.journey.endings import Endings
from balancer.journey.gate import Gate
from balancer.journey.handover import Routed
from balancer.journey.meter import Meter
from balancer.journey.placement import Placer
from balancer.journey.prefixes import Prefixes
from balancer.journey.recent import RecentRequests
from balancer.journey.recovery import Recovery
from balancer.journey.request import Delta, Final, FinishReason, Request
from balancer.journey.retry import Outage, RequestRetries
from balancer.journey.running import RequestCancelled, RunningRequests
from balancer.journey.state import Emit, Journey, Limits
from balancer.journey.transcript import StreamBroken, Transcript
from balancer.text import IncrementalText
from balancer.tracing import describe_end
from runtime.clock import Clock
from runtime.errors import DisaggError, Overloaded, Reason
from runtime.metrics import Metrics
from runtime.telemetry import current

_RETRY_AFTER_S = 1.0  # a store under pressure is relieved hand-off by hand-off

Attempt = Callable[[Journey], Awaitable[None]]


class Pipeline:
    """The request's thread of control; belongs to one event loop.

    Args:
        running: One place per request id.
        gate: Admission.
        placer: Forgets requests that ended.
        prefixes: Knows what of a prompt is stored.
        attempts: Runs one attempt.
        recovery: Decides whether another one follows.
        handoffs: The store's hand-offs, which may be too many already.
        meter: Told about what ended.
        recent: Keeps the last of what ended.
        is_closing: Whether this process breaks off what it still serves.
        make_text: A fresh incremental decoder.
        says_vllm: Whether spans repeat times in the names of vLLM.
    """

    def __init__(
        self,
        *,
        running: RunningRequests,
        gate: Gate,
        placer: Placer,
        prefixes: Prefixes,
        attempts: Attempts,
        recovery: Recovery,
        handoffs: Handoffs,
        make_text: Callable[[], IncrementalText],
        clock: Clock,
        limits: Limits,
        metrics: Metrics,
        meter: Meter,
        recent: RecentRequests,
        is_closing: Callable[[], bool],
        says_vllm: bool = False,
    ) -> None:
        self._says_vllm = says_vllm
        self._running = running
        self._gate = gate
        self._placer = placer
        self._prefixes = prefixes
        self._attempts = attempts
        self._recovery = recovery
        self._handoffs = handoffs
        self._make_text = make_text
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._meter = meter
        self._is_closing = is_closing
        self._endings = Endings(metrics, meter, recent)

    async def run(self, request: Request, emit: Emit) -> Final:
        """Generates; hands every piece to `emit`, and returns what ends the stream.

        Raises:
            DisaggError: The request failed for good; nothing it held is left behind.
        """
        journey = self._set_out(request, emit)
        await self._travel(journey, self._attempts.serve)
        final = self._endings.arrived(journey, total_us=journey.age_us(self._clock.now()))
        describe_end(current(), request, final, says_vllm=self._says_vllm)
        return final

    async def route(
        self, request: Request, *, generated: Sequence[int] = (), last_attempt: int = 0
    ) -> Routed:
        """Prefills, and hands slot and ticket over to the caller.

        Args:
            generated: Tokens of the answer that exist already.
            last_attempt: Attempt that made them; 0 if there was none.

        Raises:
            DisaggError: The request failed for good; nothing it held is left behind.
        """
        deltas: list[Delta] = []

        async def keep(delta: Delta) -> None:
            deltas.append(delta)

        journey = self._set_out(request, keep)
        journey.attempt = last_attempt + 1
        journey.transcript.begin(journey.attempt)
        journey.transcript.take(journey.attempt, len(generated), generated, (), None)
        deltas.clear()
        await self._travel(journey, self._attempts.hand_over)
        final = self._endings.arrived(journey, total_us=journey.age_us(self._clock.now()))
        describe_end(current(), request, final, says_vllm=self._says_vllm)
        return Routed(
            attempt=journey.attempt,
            seq=final.seq,
            deltas=tuple(deltas),
            finish_reason=None if journey.handover is not None else final.finish_reason,
            handover=journey.handover,
            usage=final.usage,
            timing=final.timing,
        )

    async def _travel(self, journey: Journey, attempt: Attempt) -> None:
        """Attempts until the journey is over; everything held is given back on the way out."""
        request = journey.request
        try:
            self._refuse_under_pressure()
            async with self._running.scope(request):
                began_at = self._clock.now()
                journey.stored_tokens = await self._prefixes.stored_tokens(request)
                asked_at = self._clock.now()
                journey.timing.lookup_us = round((asked_at - began_at) * 1e6)
                async with self._gate.slot(self._placer.applicant(journey)):
                    waited_s = self._clock.now() - asked_at
                    journey.timing.admit_us = round(waited_s * 1e6)
                    self._meter.phase("admit", waited_s)
                    while not journey.is_over:
                        try:
                            await attempt(journey)
                        except (DisaggError, StreamBroken) as error:
                            await self._recovery.give_up_or_go_on(journey, error)
        except RequestCancelled:
            journey.transcript.finish_reason = FinishReason.ABORT
            self._endings.cancelled(journey, "client")
        except DisaggError as error:
            if error.reason is Reason.DEADLINE:
                self._endings.cancelled(journey, "deadline")
            self._failed(journey, error.reason)
            raise
        except asyncio.CancelledError:
            is_closing = self._is_closing()
            self._endings.cancelled(journey, "drain" if is_closing else "client")
            self._failed(journey, Reason.DRAINING if is_closing else Reason.CALLER_LEFT)
            raise
        except Exception:
            self._failed(journey, Reason.INVARIANT_BROKEN)
            raise
        finally:
            self._placer.finished(journey)

    def _failed(self, journey: Journey, reason: str) -> None:
        self._endings.failed(journey, reason, total_us=journey.age_us(self._clock.now()))

    def _refuse_under_pressure(self) -> None:
        """New work is turned away before the store itself turns away what was admitted."""
        if why := self._handoffs.refusal:
            self._metrics.count("disagg_admission_rejections_total", reason=Reason.POOL_FULL)
            raise Overloaded(
                f"no new request is taken: {why}; try again in {_RETRY_AFTER_S:g} s",
                reason=Reason.POOL_FULL,
                retry_after_s=_RETRY_AFTER_S,
            )

    def _set_out(self, request: Request, emit: Emit) -> Journey:
        transcript = Transcript(
            last_seq=request.last_seq,
            text=self._make_text(),
            stop=request.sampling.stop,
            min_tokens=request.sampling.min_tokens,
        )
        transcript.begin(1)
        retries = RequestRetries(
            prefill=self._limits.prefill_retries, decode=self._limits.decode_retries
        )
        return Journey(
            request=request,
            transcript=transcript,
            emit=emit,
            retries=retries,
            outage=Outage(self._limits.recovery_wait_s),
        )
