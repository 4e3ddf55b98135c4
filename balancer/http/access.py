"""API keys at the HTTP door: an ASGI application around the one that serves.

What tells nothing about requests stays open, since probes and scrapers have no key; so do the files
of the status page, which ask a person for one.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from balancer.http.errors import problem_of
from balancer.ui.files import FILE_PATHS
from runtime.access import ApiKeys, tenant_scope
from runtime.errors import Denied

OPEN_PATHS = frozenset({"/health", "/ping", "/ready", "/metrics", "/version"}) | FILE_PATHS


class KeyGuard:
    """Serves who has a key, as its tenant; tells the others what is missing.

    Args:
        on_refuse: Told of each of the others, with `denied`.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, on_refuse: Callable[[str], None]) -> None:
        self._app = app
        self._keys = keys
        self._on_refuse = on_refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one call; see ASGI."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            tenant = self._keys.tenant_of(Headers(scope=scope).get("authorization", ""))
        except Denied as error:
            self._on_refuse("denied")
            problem = problem_of(error)
            headers = problem.headers | {"www-authenticate": "Bearer"}
            await JSONResponse(problem.body, problem.status, headers)(scope, receive, send)
            return
        with tenant_scope(tenant):
            await self._app(scope, receive, send)
