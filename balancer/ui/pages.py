"""The paths of the status page.

/ui                             the page; /ui/page.css and /ui/page.js are what it is made of
/ui/state.json                  what it draws, see `balancer.ui.state`
/ui/decisions/{request_id}      why a request ran where it ran; `?what_if=1` searches for what would
                                have changed the choice

Where callers need a key, the files are open and the other two are for keys of one tenant, or for
keys without a tenant: a tenant is not to see the requests of another. Nothing comes from elsewhere:
a browser is told to refuse it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from balancer.ui.files import FILE_PATHS, read_file
from balancer.ui.watch import Watch
from balancer.validation import check_request_id
from runtime.access import current_tenant, keys_of
from runtime.errors import Forbidden, Reason

Page = Callable[[Request], Awaitable[Response]]

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Words of others can only become text: a browser takes no markup from the script.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_JSON = {**HEADERS, "content-type": "application/json", "cache-control": "no-store"}


def status_pages(watch: Watch, *, tenant: str = "") -> Mapping[str, Page]:
    """The pages by path; they raise errors of the tree.

    Args:
        tenant: Whose keys open them where callers need one; empty: keys without a tenant.
    """

    def check_tenant() -> None:
        if current_tenant() not in (None, tenant):
            raise Forbidden(
                f"the status page is for {keys_of(tenant)}; use one, or change http.ui_tenant",
                reason=Reason.NOT_ALLOWED,
            )

    async def state(_request: Request) -> Response:
        check_tenant()
        return Response(await watch.state(), headers=_JSON)

    async def decisions(request: Request) -> Response:
        check_tenant()
        request_id = check_request_id(request.path_params["request_id"])
        what_if = request.query_params.get("what_if", "") not in ("", "0")
        return Response(await watch.decisions(request_id, what_if=what_if), headers=_JSON)

    return {
        **{path: _file(path) for path in sorted(FILE_PATHS)},
        "/ui/state.json": state,
        "/ui/decisions/{request_id}": decisions,
    }


def _file(path: str) -> Page:
    content, kind = read_file(path)
    # The page of a newer balancer behind the same address is taken at once.
    headers = {**HEADERS, "content-type": kind, "cache-control": "no-cache"}

    async def serve(_request: Request) -> Response:
        return Response(content, headers=headers)

    return serve
