"""The paths of the HTTP face, and the small ones among them.

/v1/completions, /v1/chat/completions    see `generation`
/v1/models, /v1/models/{id}              the one model that is served
/tokenize, /detokenize                   the encoder of the two above
/health, /ping                           the process answers
/ready                                   it can take new work
/metrics                                 in the text form of Prometheus
/version                                 of this software
/ui                                      the status page, see `balancer.ui.pages`
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from balancer.http.conversation import read_turns
from balancer.http.errors import error_body, problem_of
from balancer.http.exchange import Exchange
from balancer.http.fields import Fields, parse_body
from balancer.http.generation import CHAT, COMPLETIONS, GenerationEndpoint, Parts
from balancer.validation import check_model
from disagg.v1 import generation_pb2
from runtime.errors import Reason
from runtime.interceptors import incident, translate

OWNER = "disagg"

Page = Callable[[HttpRequest], Awaitable[Response]]


def make_app(parts: Parts, status: Mapping[str, Page] | None = None) -> Starlette:
    """The ASGI application.

    Args:
        status: Pages of the status page by path, see `balancer.ui.pages`.
    """
    pages = _Pages(parts)
    routes = [
        *(
            Route(path, GenerationEndpoint(parts, path), methods=["POST"])
            for path in (COMPLETIONS, CHAT)
        ),
        Route("/v1/models", pages.models),
        Route("/v1/models/{model_id:path}", pages.guarded(pages.model)),
        Route("/tokenize", pages.guarded(pages.tokenize), methods=["POST"]),
        Route("/detokenize", pages.guarded(pages.detokenize), methods=["POST"]),
        Route("/health", pages.health),
        Route("/ping", pages.health),
        Route("/ready", pages.ready),
        Route("/metrics", pages.metrics),
        Route("/version", pages.version),
        *(Route(path, pages.guarded(page)) for path, page in (status or {}).items()),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_such_page})


class _Pages:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def guarded(self, page: Page) -> Page:
        """The page, with its errors as OpenAI's error objects."""

        async def serve(request: HttpRequest) -> Response:
            try:
                return await page(request)
            except Exception as error:
                known = translate(self._parts.errors, error)
                if known is None or known.reason is Reason.INVARIANT_BROKEN:
                    known = incident(request.url.path, error, self._parts.metrics)
            problem = problem_of(known)
            return JSONResponse(problem.body, problem.status, problem.headers)

        return serve

    async def models(self, _request: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: HttpRequest) -> Response:
        check_model(request.path_params["model_id"], self._parts.intake.card)
        return JSONResponse(self._card())

    async def tokenize(self, request: HttpRequest) -> Response:
        fields = await self._fields(request)
        check_model(fields.text("model") or "", self._parts.intake.card)
        message = generation_pb2.TokenizeRequest()
        if fields.has("messages"):
            message.chat.CopyFrom(read_turns(fields))
        elif (text := fields.text("prompt")) is not None:
            message.text = text
        else:
            raise fields.fault("prompt", "there is none; send prompt or messages")
        token_ids = await self._parts.intake.encode(message)
        return JSONResponse(
            {
                "count": len(token_ids),
                "max_model_len": self._parts.intake.card.max_model_len,
                "tokens": token_ids,
            }
        )

    async def detokenize(self, request: HttpRequest) -> Response:
        fields = await self._fields(request)
        check_model(fields.text("model") or "", self._parts.intake.card)
        if not fields.has("tokens"):
            raise fields.fault("tokens", "there are none; send a list of token ids")
        text = await asyncio.to_thread(self._parts.intake.codec.decode, fields.integers("tokens"))
        return JSONResponse({"prompt": text})

    async def health(self, _request: HttpRequest) -> Response:
        return Response()

    async def ready(self, _request: HttpRequest) -> Response:
        if self._parts.host.health.is_ready:
            return PlainTextResponse("ready\n")
        why = "draining" if self._parts.host.is_draining else "not ready"
        return PlainTextResponse(f"{why}\n", 503, {"retry-after": "1"})

    async def metrics(self, request: HttpRequest) -> Response:
        data, kind = await asyncio.to_thread(
            self._parts.metrics.exposition, request.headers.get("accept", "")
        )
        return Response(data, headers={"content-type": kind})

    async def version(self, _request: HttpRequest) -> Response:
        return JSONResponse({"version": self._parts.version})

    def _card(self) -> dict[str, object]:
        card = self._parts.intake.card
        return {
            "id": card.name,
            "object": "model",
            "created": self._parts.started_at,
            "owned_by": OWNER,
            "root": card.name,
            "parent": None,
            "max_model_len": card.max_model_len,
        }

    async def _fields(self, request: HttpRequest) -> Fields:
        settings = self._parts.settings
        exchange = Exchange(
            request.scope, request.receive, _nobody, keep_alive_s=settings.keep_alive_s
        )
        data = await exchange.read(
            max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s
        )
        return Fields(parse_body(data))


async def _nobody(_message: object) -> None:
    """The answer is sent by the page."""


async def _no_such_page(request: HttpRequest, error: Exception) -> Response:
    """Unknown paths and wrong methods."""
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: {error.detail}"
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    body = error_body(text, "invalid_request_error", code)
    return JSONResponse(body, error.status_code, dict(error.headers or {}))
