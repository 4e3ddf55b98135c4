"""The gRPC face for callers that stream from decode themselves, or ask why: see `RoutingService`.

The balancer places and prefills as for any request, then steps aside. It does not see the tokens of
decode, so what needs their text (stop texts) is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import grpc.aio

from balancer.explained import explained
from balancer.intake import Intake
from balancer.journey.handover import Routed
from balancer.journey.request import Request
from balancer.pipeline import Pipeline
from balancer.remote.messages import decode_request
from balancer.router import Router
from balancer.validation import bad_field, check_model, check_request_id
from balancer.wire import FINISH_REASONS, fill_timing, fill_usage, logprobs_message
from disagg.v1 import routing_pb2, routing_pb2_grpc
from runtime.errors import FieldViolation, InvalidRequest, Reason
from runtime.logging import request_scope

if TYPE_CHECKING:  # generic in the type stubs only
    Context = grpc.aio.ServicerContext[Any, Any]
else:
    Context = grpc.aio.ServicerContext

SERVICE = "disagg.v1.RoutingService"
ROUTE = f"/{SERVICE}/Route"


class RoutingFace(routing_pb2_grpc.RoutingServiceServicer):
    """Prepares requests that their callers finish, and explains where requests run.

    Args:
        class_names: Names of the length classes.
        overseer: Tenant whose keys see decisions on the requests of all; see `visible_ids`.
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        intake: Intake,
        router: Router,
        class_names: Sequence[str] = (),
        overseer: str = "",
    ) -> None:
        self._pipeline = pipeline
        self._router = router
        self._class_names = class_names
        self._overseer = overseer
        self._intake = intake

    async def Route(
        self, request: routing_pb2.RouteRequest, context: Context
    ) -> routing_pb2.RouteResponse:
        """See `RoutingService.Route`."""
        arrived_at, asked = self._intake.now(), request.generate
        request_id = check_request_id(asked.request_id)
        with request_scope(request_id=request_id):
            check_model(asked.model, self._intake.card)
            generated = self._check_generated(request)
            checked = self._intake.check(
                asked,
                request_id=request_id,
                token_ids=await self._intake.encode(asked),
                arrived_at=arrived_at,
                timeout_s=context.time_remaining(),
                endpoint="route",
            )
            if len(generated) >= checked.max_tokens and generated:
                raise bad_field(
                    "generated",
                    f"{len(generated)} tokens of at most {checked.max_tokens}: nothing is missing",
                )
            routed = await self._pipeline.route(
                checked, generated=generated, last_attempt=request.last_attempt
            )
        return _response(checked, routed)

    async def Explain(
        self, request: routing_pb2.ExplainRequest, _context: Context
    ) -> routing_pb2.ExplainResponse:
        """See `RoutingService.Explain`."""
        if not request.request_id:
            raise bad_field("request_id", "empty; send the id of a request")
        request_id = check_request_id(request.request_id)
        return await explained(
            self._router,
            request_id,
            what_if=request.what_if,
            now=self._intake.now(),
            class_names=self._class_names,
            overseer=self._overseer,
        )

    def _check_generated(self, request: routing_pb2.RouteRequest) -> tuple[int, ...]:
        asked = request.generate
        if asked.sampling.stop:
            raise InvalidRequest(
                "sampling.stop: decode sees no text; use Generate, or stop_token_ids",
                reason=Reason.UNSUPPORTED_PARAMETER,
                violations=(FieldViolation(field="sampling.stop", description="not with Route"),),
            )
        generated = tuple(request.generated)
        self._intake.codec.check_ids(generated, "generated")
        if generated and asked.last_seq not in (0, len(generated)):
            raise bad_field(
                "generate.last_seq",
                f"{asked.last_seq}, but {len(generated)} tokens came with the call; send 0",
            )
        return generated


def _response(request: Request, routed: Routed) -> routing_pb2.RouteResponse:
    response = routing_pb2.RouteResponse(
        request_id=request.public_id,
        attempt=routed.attempt,
        seq=routed.seq,
        seed=request.sampling.seed,
        token_ids=[token for delta in routed.deltas for token in delta.token_ids],
        logprobs=[logprobs_message(entry) for delta in routed.deltas for entry in delta.logprobs],
    )
    fill_usage(response.usage, routed.usage)
    fill_timing(response.timing, routed.timing)
    if routed.finish_reason is not None:
        response.finish_reason = FINISH_REASONS[routed.finish_reason]
    if routed.handover is not None:
        pair, handover = routed.handover.pair, routed.handover
        response.decode.member_id = pair.decode.member_id
        response.decode.address = pair.decode.address
        response.decode.request.CopyFrom(
            decode_request(handover.call, handover.ticket, pair.credit_id)
        )
    return response
