"""The gRPC faces of the balancer: wire messages in, our own types inside, wire messages out.

Thin on purpose. `GenerationFace` checks and translates, then hands over to the pipeline;
`MembershipFace` feeds the membership with heartbeats. Errors leave as exceptions of
`runtime.errors`; the interceptors of `runtime.serve` make statuses of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc.aio

from balancer.intake import Intake
from balancer.journey.request import Delta, Final, Request
from balancer.journey.running import RunningRequests
from balancer.membership import Load, Member, Membership, MemberView, Role
from balancer.pipeline import Pipeline
from balancer.text import TextError
from balancer.validation import bad_field, check_model, check_request_id
from balancer.wire import FINISH_REASONS, fill_timing, fill_usage, logprobs_message
from disagg.v1 import (
    generation_pb2,
    generation_pb2_grpc,
    membership_pb2,
    membership_pb2_grpc,
)
from disagg.wire import duration
from runtime.access import current_tenant, scoped_id
from runtime.clock import Clock
from runtime.errors import InvalidRequest
from runtime.logging import request_scope

if TYPE_CHECKING:  # generic in the type stubs only; request and response differ per method
    Context = grpc.aio.ServicerContext[Any, Any]
else:
    Context = grpc.aio.ServicerContext

GENERATE = "/disagg.v1.GenerationService/Generate"
MEMBERSHIP = "disagg.v1.MembershipService"
SERVICES = (
    "disagg.v1.GenerationService",
    MEMBERSHIP,
    "disagg.v1.AdminService",
)


class GenerationFace(generation_pb2_grpc.GenerationServiceServicer):
    """The front door.

    Args:
        intake: Checks what callers send.
        fingerprint: KV layout of the ready members, hexadecimal, for `ListModels`.
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        running: RunningRequests,
        intake: Intake,
        fingerprint: Callable[[], str],
    ) -> None:
        self._pipeline = pipeline
        self._running = running
        self._intake = intake
        self._fingerprint = fingerprint

    # A coroutine that writes, not a generator: what the pipeline holds is then given back by
    # ordinary exceptions, also when the caller leaves in the middle of a write.
    async def Generate(  # type: ignore[override]
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> None:
        """See `GenerationService.Generate`."""
        arrived_at = self._intake.now()
        request_id = check_request_id(request.request_id)
        with request_scope(request_id=request_id):
            check_model(request.model, self._intake.card)  # before anything is encoded
            checked = self._intake.check(
                request,
                request_id=request_id,
                token_ids=await self._intake.encode(request),
                arrived_at=arrived_at,
                timeout_s=context.time_remaining(),
            )
            stream = _Stream(checked, context)
            await stream.end(await self._pipeline.run(checked, stream.emit))

    async def CancelRequest(
        self, request: generation_pb2.CancelRequestRequest, _context: Context
    ) -> generation_pb2.CancelRequestResponse:
        """See `GenerationService.CancelRequest`."""
        tenant = current_tenant()
        found = self._running.cancel(scoped_id(tenant, request.request_id), owner=tenant)
        return generation_pb2.CancelRequestResponse(found=found)

    async def Tokenize(
        self, request: generation_pb2.TokenizeRequest, _context: Context
    ) -> generation_pb2.TokenizeResponse:
        """See `GenerationService.Tokenize`."""
        return generation_pb2.TokenizeResponse(token_ids=await self._intake.encode(request))

    async def Detokenize(
        self, request: generation_pb2.DetokenizeRequest, _context: Context
    ) -> generation_pb2.DetokenizeResponse:
        """See `GenerationService.Detokenize`."""
        text = await asyncio.to_thread(self._intake.codec.decode, list(request.token_ids))
        return generation_pb2.DetokenizeResponse(text=text)

    async def ListModels(
        self, _request: generation_pb2.ListModelsRequest, _context: Context
    ) -> generation_pb2.ListModelsResponse:
        """See `GenerationService.ListModels`; there is one model, so one page."""
        card = self._intake.card
        model = generation_pb2.Model(
            id=card.name, max_model_len=card.max_model_len, fingerprint=self._fingerprint()
        )
        return generation_pb2.ListModelsResponse(models=[model])


class MembershipFace(membership_pb2_grpc.MembershipServiceServicer):
    """Heartbeats in, members out.

    Args:
        interval_s: How soon members should announce themselves again.
        on_change: Called after every accepted heartbeat.
    """

    def __init__(
        self,
        *,
        members: Membership,
        clock: Clock,
        interval_s: float,
        on_change: Callable[[], None],
    ) -> None:
        self._members = members
        self._clock = clock
        self._interval_s = interval_s
        self._on_change = on_change

    async def Heartbeat(
        self, request: membership_pb2.HeartbeatRequest, _context: Context
    ) -> membership_pb2.HeartbeatResponse:
        """See `MembershipService.Heartbeat`."""
        member = _member(request.member)
        if self._members.observe(member, self._clock.now()):
            self._on_change()
        return membership_pb2.HeartbeatResponse(
            interval=duration(self._interval_s),
            drain=self._members.is_drain_ordered(member.member_id),
        )

    async def ListMembers(
        self, request: membership_pb2.ListMembersRequest, _context: Context
    ) -> membership_pb2.ListMembersResponse:
        """See `MembershipService.ListMembers`."""
        role = _ROLES.get(request.role)
        views = self._members.views(self._clock.now(), role)
        return membership_pb2.ListMembersResponse(members=[_member_message(view) for view in views])


class _Stream:
    """One answer on its way to the caller; the first message carries the seed."""

    def __init__(self, request: Request, context: Context) -> None:
        self._request = request
        self._context = context
        self._is_first = True

    async def emit(self, delta: Delta) -> None:
        """Sends a piece; waits while the caller reads slowly."""
        await self._write(
            generation_pb2.GenerateResponse(
                attempt=delta.attempt,
                seq=delta.seq,
                token_ids=delta.token_ids,
                text=delta.text,
                logprobs=map(logprobs_message, delta.logprobs),
            )
        )

    async def end(self, final: Final) -> None:
        """Sends the last message."""
        message = generation_pb2.GenerateResponse(
            attempt=final.attempt, seq=final.seq, text=final.text
        )
        message.final.finish_reason = FINISH_REASONS[final.finish_reason]
        fill_usage(message.final.usage, final.usage)
        fill_timing(message.final.timing, final.timing)
        await self._write(message)

    async def _write(self, message: generation_pb2.GenerateResponse) -> None:
        message.request_id = self._request.public_id
        if self._is_first:
            message.seed = self._request.sampling.seed
            self._is_first = False
        await self._context.write(message)


_ROLES = {
    membership_pb2.MEMBER_ROLE_PREFILL: Role.PREFILL,
    membership_pb2.MEMBER_ROLE_DECODE: Role.DECODE,
}
_ROLE_VALUES = {role: value for value, role in _ROLES.items()}
_LOAD_FIELDS = tuple(field.name for field in membership_pb2.LoadSnapshot.DESCRIPTOR.fields)


def text_error(error: TextError) -> InvalidRequest:
    """What callers see of text that cannot be encoded; for the error map of the process."""
    return bad_field(error.field, str(error))


def _member(message: membership_pb2.Member) -> Member:
    """The member of a heartbeat.

    Raises:
        InvalidRequest: A field without which nothing can be sent there is missing.
    """
    if message.role not in _ROLES:
        raise bad_field("member.role", "unspecified; send PREFILL or DECODE")
    for name in ("member_id", "address", "fingerprint"):
        if not getattr(message, name):
            raise bad_field(f"member.{name}", "empty; every member has one")
    return Member(
        member_id=message.member_id,
        role=_ROLES[message.role],
        address=message.address,
        group_id=message.group_id,
        rank=message.rank,
        group_size=message.group_size,
        fingerprint=message.fingerprint,
        model=message.model,
        max_model_len=message.max_model_len,
        block_tokens=message.block_tokens,
        window_replay_tokens=message.window_replay_tokens,
        metrics_address=message.metrics_address,
        ready=message.ready,
        draining=message.draining,
        sequence=message.sequence,
        load=Load(**{name: getattr(message.load, name) for name in _LOAD_FIELDS}),
    )


def _member_message(view: MemberView) -> membership_pb2.Member:
    member = view.member
    return membership_pb2.Member(
        member_id=member.member_id,
        role=_ROLE_VALUES[member.role],
        address=member.address,
        group_id=member.group_id,
        rank=member.rank,
        group_size=member.group_size,
        fingerprint=member.fingerprint,
        model=member.model,
        max_model_len=member.max_model_len,
        block_tokens=member.block_tokens,
        window_replay_tokens=member.window_replay_tokens,
        metrics_address=member.metrics_address,
        ready=member.ready and view.exclusion is None,
        draining=member.draining,
        sequence=member.sequence,
        load=membership_pb2.LoadSnapshot(
            **{name: getattr(member.load, name) for name in _LOAD_FIELDS}
        ),
        age=duration(view.age_s),
        exclusion=view.exclusion.name.lower() if view.exclusion else "",
    )
