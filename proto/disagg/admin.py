"""`disagg.v1.AdminService`, alike in every process.

The servicer translates; what draining means and what there is to know comes from the process.
"""

from collections.abc import Awaitable, Callable, Mapping

import grpc.aio

from disagg.v1 import admin_pb2, admin_pb2_grpc

SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Drain, undrain and introspection of one process.

    Args:
        role: balancer, prefill or decode.
        version: Version of disagg.
        fingerprint: KV layout fingerprint; empty where there is none.
        begin_drain: Refuses new work from now on; twice is harmless.
        end_drain: Takes new work again.
        running: Requests that run.
        statistics: Named counts and gauges of this moment; called on the event loop.
        trace_endpoint: Where spans of this process go; empty if nowhere.
    """

    def __init__(
        self,
        *,
        role: str,
        version: str,
        fingerprint: bytes,
        begin_drain: Callable[[], Awaitable[None]],
        end_drain: Callable[[], Awaitable[None]],
        running: Callable[[], int],
        statistics: Callable[[], Mapping[str, float]],
        trace_endpoint: str = "",
    ) -> None:
        self._role = role
        self._version = version
        self._fingerprint = fingerprint
        self._begin_drain = begin_drain
        self._end_drain = end_drain
        self._running = running
        self._statistics = statistics
        self._trace_endpoint = trace_endpoint

    async def Drain(
        self,
        _request: admin_pb2.DrainRequest,
        _context: grpc.aio.ServicerContext[admin_pb2.DrainRequest, admin_pb2.DrainResponse],
    ) -> admin_pb2.DrainResponse:
        """See admin.proto."""
        await self._begin_drain()
        return admin_pb2.DrainResponse(running=self._running())

    async def Undrain(
        self,
        _request: admin_pb2.UndrainRequest,
        _context: grpc.aio.ServicerContext[admin_pb2.UndrainRequest, admin_pb2.UndrainResponse],
    ) -> admin_pb2.UndrainResponse:
        """See admin.proto."""
        await self._end_drain()
        return admin_pb2.UndrainResponse()

    async def GetServerInfo(
        self,
        _request: admin_pb2.GetServerInfoRequest,
        _context: grpc.aio.ServicerContext[
            admin_pb2.GetServerInfoRequest, admin_pb2.GetServerInfoResponse
        ],
    ) -> admin_pb2.GetServerInfoResponse:
        """See admin.proto."""
        return admin_pb2.GetServerInfoResponse(
            role=self._role,
            version=self._version,
            fingerprint=self._fingerprint.hex(),
            statistics=dict(self._statistics()),
            trace_endpoint=self._trace_endpoint,
        )
