"""The faces of a balancer: its gRPC services and its HTTP door."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from balancer.assembly import Balancer
from balancer.facade.face import Parts as FacadeParts
from balancer.facade.face import VllmEngineFace
from balancer.http.app import Page, make_app
from balancer.http.generation import Parts
from balancer.http.server import serving
from balancer.route import RoutingFace
from balancer.routing.options import class_limits
from balancer.server import GenerationFace, MembershipFace
from balancer.ui.pages import status_pages
from balancer.ui.watch import Watch
from disagg.admin import AdminServicer
from disagg.facade import vllm_engine_pb2_grpc
from disagg.v1 import (
    admin_pb2_grpc,
    generation_pb2_grpc,
    membership_pb2_grpc,
    routing_pb2_grpc,
)
from runtime.access import current_tenant, keys_of
from runtime.errors import Forbidden, Reason


def register(balancer: Balancer, version: str) -> None:
    """Puts the faces on the server."""
    server = balancer.host.server
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(
        GenerationFace(
            pipeline=balancer.pipeline,
            running=balancer.running,
            intake=balancer.intake,
            fingerprint=balancer.fingerprint,
        ),
        server,
    )
    routing_pb2_grpc.add_RoutingServiceServicer_to_server(
        RoutingFace(
            pipeline=balancer.pipeline,
            intake=balancer.intake,
            router=balancer.router,
            class_names=class_limits(balancer.settings.routing.boundaries),
            overseer=balancer.settings.http.ui_tenant,
        ),
        server,
    )
    if balancer.settings.facade.enabled:
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(_facade(balancer, version), server)
    membership_pb2_grpc.add_MembershipServiceServicer_to_server(
        MembershipFace(
            members=balancer.members,
            clock=balancer.clock,
            interval_s=balancer.settings.membership.interval_s,
            on_change=balancer.placer.look_again,
        ),
        server,
    )
    host, overseer = balancer.host, balancer.settings.http.ui_tenant
    admin_pb2_grpc.add_AdminServiceServicer_to_server(
        AdminServicer(
            role="balancer",
            version=version,
            fingerprint=b"",
            begin_drain=_for_operators(host.begin_drain, overseer),
            end_drain=_for_operators(host.end_drain, overseer),
            running=lambda: host.running,
            statistics=balancer.statistics,
            trace_endpoint=host.tracer.endpoint,
        ),
        server,
    )


def _for_operators(
    act: Callable[[], Awaitable[None]], overseer: str
) -> Callable[[], Awaitable[None]]:
    """The same for those who may see all requests too: a tenant's key stops no balancer."""

    async def checked() -> None:
        if current_tenant() not in (None, overseer):
            raise Forbidden(
                f"draining a balancer is for {keys_of(overseer)}; use one of them, or the "
                "certificate of a part of the system",
                reason=Reason.NOT_ALLOWED,
            )
        await act()

    return checked


def _facade(balancer: Balancer, version: str) -> VllmEngineFace:
    return VllmEngineFace(
        FacadeParts(
            pipeline=balancer.pipeline,
            running=balancer.running,
            intake=balancer.intake,
            members=balancer.members,
            host=balancer.host,
            clock=balancer.clock,
            metrics=balancer.metrics,
            directory=balancer.settings.model.path,
            kv_connector=balancer.settings.facade.kv_connector,
            max_running=balancer.settings.admission.max_running,
            fingerprint=balancer.fingerprint,
            version=version,
        )
    )


def _status(balancer: Balancer, version: str) -> Mapping[str, Page]:
    """The pages of the status page, if there is one."""
    settings = balancer.settings.http
    if not settings.ui:
        return {}
    return status_pages(Watch(balancer, version), tenant=settings.ui_tenant)


@asynccontextmanager
async def serving_http(balancer: Balancer, version: str) -> AsyncIterator[str]:
    """Serves the HTTP face while the body runs, if the settings name a port for it.

    Yields:
        Its address as host:port, or an empty text.

    Raises:
        ListenError: The address cannot be listened on.
    """
    settings = balancer.settings.http
    if settings.port is None:
        yield ""
        return
    parts = Parts(
        settings=settings,
        intake=balancer.intake,
        pipeline=balancer.pipeline,
        host=balancer.host,
        clock=balancer.clock,
        metrics=balancer.metrics,
        errors=balancer.errors,
        fingerprint=balancer.fingerprint,
        version=version,
        started_at=int(balancer.clock.wall()),
    )
    async with serving(
        make_app(parts, _status(balancer, version)),
        settings,
        balancer.host.security,
        metrics=balancer.metrics,
    ) as address:
        yield address
