"""Prefill and decode members that speak the real contract and follow a script.

They serve the real services on loopback. Tokens come from a formula of prompt and number, so every
test knows the undisturbed answer, and a disturbed one has to equal it. Each call takes the next
script of its member; without a script it behaves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import grpc.aio

from disagg.v1 import (
    common_pb2,
    decode_pb2,
    decode_pb2_grpc,
    membership_pb2,
    membership_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
)
from runtime.errors import DisaggError
from runtime.status import to_status

FINGERPRINT = b"layout-1"
VOCAB = 2048


def token_of(prompt: Sequence[int], number: int) -> int:
    """The token numbered `number` of the answer to a prompt: printable ASCII of tiny-v4."""
    return 40 + (sum(prompt) * 7 + number * 13) % 80


def answer(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The undisturbed answer."""
    return [token_of(prompt, number) for number in range(1, num_tokens + 1)]


@dataclass
class Script:
    """What one call does.

    Attributes:
        stop_at: Token number after which the model stops by itself.
        error: Raised once `after_tokens` tokens were sent (prefill: instead of the ticket).
        after_tokens: See `error`, `hang` and `end`.
        end: End the stream cleanly at that point, without its final event.
        hang: Wait for ever at that point.
        twice: Send every message of decode twice.
        skip: Leave this token number out.
        stale_attempt: Mark the tokens of decode with this attempt.
        stored: Blocks that prefill reports before its first token, if it is asked to.
    """

    error: DisaggError | None = None
    after_tokens: int = 0
    end: bool = False
    hang: bool = False
    twice: bool = False
    skip: int = 0
    stale_attempt: int = 0
    stop_at: int = 0
    stored: int = 0
    before: Callable[[], None] | None = None


@dataclass
class Member:
    """State shared by both kinds."""

    role: int
    member_id: str
    scripts: deque[Script] = field(default_factory=deque)
    calls: list[object] = field(default_factory=list)
    active: int = 0
    cancelled: int = 0
    credits: set[str] = field(default_factory=set)
    releases: int = 0
    capacity: int = 1 << 30
    refuse: DisaggError | None = None
    refusals: deque[DisaggError] = field(default_factory=deque)
    fingerprint: bytes = FINGERPRINT
    address: str = ""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    prefetches: list[list[decode_pb2.PrefetchRequest]] = field(default_factory=list)
    prefetching: int = 0
    prefetch_error: DisaggError | None = None
    prefetch_told: asyncio.Event = field(default_factory=asyncio.Event)
    server: grpc.aio.Server | None = None
    sequence: int = 0

    async def start(self) -> None:
        """Listens on loopback."""
        self.server = grpc.aio.server()
        if self.role == membership_pb2.MEMBER_ROLE_PREFILL:
            prefill_pb2_grpc.add_PrefillServiceServicer_to_server(_Prefill(self), self.server)
        else:
            decode_pb2_grpc.add_DecodeServiceServicer_to_server(_Decode(self), self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.address = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        """Goes away at once; running calls break."""
        if self.server is not None:
            await self.server.stop(0)

    async def announce(self, channel: grpc.aio.Channel, *, ready: bool = True) -> None:
        """Sends one heartbeat."""
        self.sequence += 1
        await membership_pb2_grpc.MembershipServiceStub(channel).Heartbeat(
            membership_pb2.HeartbeatRequest(
                member=membership_pb2.Member(
                    member_id=self.member_id,
                    role=self.role,
                    address=self.address,
                    group_id="g",
                    group_size=1,
                    fingerprint=self.fingerprint,
                    model="tiny-v4",
                    max_model_len=4096,
                    block_tokens=32,
                    window_replay_tokens=378,
                    ready=ready,
                    sequence=self.sequence,
                )
            ),
            timeout=5,
        )

    def next_script(self) -> Script:
        """The script of the next call."""
        script = self.scripts.popleft() if self.scripts else Script()
        if script.before:
            script.before()
        return script


async def disturb(script: Script, member: Member, context: grpc.aio.ServicerContext) -> bool:
    """Does what the script says at its point; True if the stream should end here."""
    member.reached.set()
    if script.error is not None:
        await context.abort_with_status(to_status(script.error))
    if script.hang:
        await asyncio.Event().wait()
    return script.end


class _Prefill(prefill_pb2_grpc.PrefillServiceServicer):
    def __init__(self, member: Member) -> None:
        self._member = member

    async def Prefill(
        self, request: prefill_pb2.PrefillRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        member = self._member
        member.calls.append(request)
        member.active += 1
        try:
            async for message in self._serve(request, context, member.next_script()):
                yield message
        except asyncio.CancelledError:
            member.cancelled += 1
            raise
        finally:
            member.active -= 1

    async def _serve(
        self,
        request: prefill_pb2.PrefillRequest,
        context: grpc.aio.ServicerContext,
        script: Script,
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        response = prefill_pb2.PrefillResponse
        disturbed = script.error is not None or script.hang or script.end
        yield response(admitted=prefill_pb2.PrefillAdmitted())
        if disturbed and script.after_tokens == 0 and await disturb(script, self._member, context):
            return
        hit = prefill_pb2.PrefillPrefixHit(cached_tokens=2, bytes=20, load_us=3)
        yield response(prefix_hit=hit)
        yield response(chunk_done=prefill_pb2.PrefillChunkDone(computed_tokens=1))
        if request.report_stored:
            for num_blocks in range(1, script.stored + 1):
                stored = prefill_pb2.PrefillBlocksStored(num_blocks=num_blocks)
                yield response(blocks_stored=stored)
        prompt = list(request.token_ids)[: len(request.token_ids) - request.num_generated]
        number = request.num_generated + 1
        token_id = token_of(prompt, number)
        reason = common_pb2.FINISH_REASON_UNSPECIFIED
        if script.stop_at == number:
            reason = common_pb2.FINISH_REASON_STOP
        elif number >= request.sampling.max_tokens:
            reason = common_pb2.FINISH_REASON_LENGTH
        first = prefill_pb2.PrefillFirstToken(
            token_id=token_id, finish_reason=reason, queue_us=5, compute_us=7
        )
        if request.sampling.HasField("logprobs"):
            first.logprobs.CopyFrom(common_pb2.PositionLogprobs(logprob=-float(number)))
        yield response(first_token=first)
        if disturbed and await disturb(script, self._member, context):
            return
        committed = prefill_pb2.PrefillCommitted(published_bytes=100, commit_us=9)
        if not reason:
            committed.ticket.CopyFrom(
                common_pb2.KvTicket(
                    handoff_id=f"h-{request.request_id}-{request.attempt}",
                    request_id=request.request_id,
                    attempt=request.attempt,
                    fingerprint=self._member.fingerprint,
                    num_tokens=len(request.token_ids),
                    first_token=token_id,
                )
            )
        yield response(committed=committed)
        # A real one does its book-keeping here, and takes the hand-off back when it is cancelled.
        await asyncio.sleep(0.01)


class _Decode(decode_pb2_grpc.DecodeServiceServicer):
    def __init__(self, member: Member) -> None:
        self._member = member
        self._num_credits = 0

    async def ReserveSlot(
        self, request: decode_pb2.ReserveSlotRequest, context: grpc.aio.ServicerContext
    ) -> decode_pb2.ReserveSlotResponse:
        member = self._member
        refusal = member.refusals.popleft() if member.refusals else member.refuse
        if refusal is not None:
            await context.abort_with_status(to_status(refusal))
        if len(member.credits) >= member.capacity:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no slot")
        self._num_credits += 1
        credit_id = f"c{self._num_credits}"
        member.credits.add(credit_id)
        return decode_pb2.ReserveSlotResponse(credit_id=credit_id)

    async def ReleaseSlot(
        self, request: decode_pb2.ReleaseSlotRequest, context: grpc.aio.ServicerContext
    ) -> decode_pb2.ReleaseSlotResponse:
        self._member.releases += 1
        found = request.credit_id in self._member.credits
        self._member.credits.discard(request.credit_id)
        return decode_pb2.ReleaseSlotResponse(found=found)

    async def Prefetch(
        self,
        request: AsyncIterator[decode_pb2.PrefetchRequest],
        context: grpc.aio.ServicerContext,
    ) -> decode_pb2.PrefetchResponse:
        member = self._member
        said: list[decode_pb2.PrefetchRequest] = []
        member.prefetches.append(said)
        member.prefetching += 1
        try:
            async for message in request:
                said.append(message)
                if member.prefetch_error is not None:
                    await context.abort_with_status(to_status(member.prefetch_error))
            member.prefetch_told.set()
            # A real one answers once Decode took what was read.
            await asyncio.Event().wait()
        finally:
            member.prefetching -= 1
        return decode_pb2.PrefetchResponse()

    async def Decode(
        self, request: decode_pb2.DecodeRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        member = self._member
        member.calls.append(request)
        member.active += 1
        try:
            async for message in self._serve(request, context, member.next_script()):
                yield message
        except asyncio.CancelledError:
            member.cancelled += 1
            raise
        finally:
            member.active -= 1
            member.credits.discard(request.credit_id)

    async def _serve(
        self,
        request: decode_pb2.DecodeRequest,
        context: grpc.aio.ServicerContext,
        script: Script,
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        disturbed = script.error is not None or script.hang or script.end
        if disturbed and script.after_tokens == 0 and await disturb(script, self._member, context):
            return
        yield decode_pb2.DecodeResponse(
            resumed=decode_pb2.DecodeResumed(
                fetched_bytes=100,
                prefetched_bytes=40 * len(self._member.prefetches),
                fetch_us=11,
            )
        )
        generated = request.num_generated
        prompt = list(request.token_ids)[: len(request.token_ids) - generated]
        last = request.sampling.max_tokens
        assert len(request.token_ids) == request.ticket.num_tokens
        for sent, number in enumerate(range(generated + 2, last + 1), 1):
            reason = common_pb2.FINISH_REASON_UNSPECIFIED
            if script.stop_at == number:
                reason = common_pb2.FINISH_REASON_STOP
            elif number == last:
                reason = common_pb2.FINISH_REASON_LENGTH
            tokens = decode_pb2.DecodeTokens(
                attempt=script.stale_attempt or request.attempt,
                seq=number,
                token_ids=[token_of(prompt, number)],
                finish_reason=reason,
            )
            if request.sampling.HasField("logprobs"):
                tokens.logprobs.append(common_pb2.PositionLogprobs(logprob=-float(number)))
            for _ in range(2 if script.twice else 1):
                if number != script.skip:
                    yield decode_pb2.DecodeResponse(tokens=tokens)
            if reason == common_pb2.FINISH_REASON_STOP:
                return
            at_point = disturbed and sent == script.after_tokens
            if at_point and await disturb(script, self._member, context):
                return


def prefill_member(name: str = "p0") -> Member:
    """A prefill member that was not started yet."""
    return Member(membership_pb2.MEMBER_ROLE_PREFILL, name)


def decode_member(name: str = "d0") -> Member:
    """A decode member that was not started yet."""
    return Member(membership_pb2.MEMBER_ROLE_DECODE, name)
