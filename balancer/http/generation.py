"""The two endpoints that generate: body in, pipeline, JSON or events out.

Every prompt of a body becomes a request of its own, with the id of the call and its number behind
it; they run side by side and share their fate. What a call holds is held below this coroutine, so
a caller who leaves cancels all of it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from balancer.config import HttpSettings
from balancer.encoding.dsml import ToolCallParser
from balancer.http.answers import Answer, Form
from balancer.http.asked import Asked, read_chat, read_completion
from balancer.http.errors import problem_of
from balancer.http.exchange import CallerGone, Exchange
from balancer.http.fields import Fields, parse_body
from balancer.http.reasoning import ReasoningSplitter
from balancer.intake import Intake
from balancer.journey.request import Delta, Request
from balancer.pipeline import Pipeline
from balancer.validation import bad_field, check_model, check_request_id
from disagg.v1 import generation_pb2
from runtime.clock import Clock
from runtime.errors import ErrorMap, FieldViolation, InvalidRequest, Reason
from runtime.interceptors import incident, translate
from runtime.logging import get_logger, request_scope
from runtime.metrics import Metrics
from runtime.metrics.processes import OTHER_FIELD, UNKNOWN_FIELDS
from runtime.serve import Host
from runtime.telemetry import current

_log = get_logger(__name__)

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
REQUEST_ID_HEADER, TIMEOUT_HEADER = "x-request-id", "x-request-timeout-ms"
TARGET_HEADERS = {"x-slo-ttft-ms": "ttft_slo_s", "x-slo-tpot-ms": "tpot_slo_s"}
_CALLER_LEFT_STATUS = 499
_MAX_MS_DIGITS = 15  # thousands of years; what is longer still is cut to that
_LONG_BODY_BYTES = 1 << 16  # about a millisecond of work


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the HTTP face is made of.

    Attributes:
        fingerprint: KV layout of the ready members, hexadecimal.
        version: Of this software.
        started_at: Seconds since 1970.
    """

    settings: HttpSettings
    intake: Intake
    pipeline: Pipeline
    host: Host
    clock: Clock
    metrics: Metrics
    errors: ErrorMap
    fingerprint: Callable[[], str]
    version: str
    started_at: int


class GenerationEndpoint:
    """An ASGI application for one of the two paths."""

    def __init__(self, parts: Parts, route: str) -> None:
        self._parts = parts
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one call; see ASGI."""
        exchange = Exchange(scope, receive, send, keep_alive_s=self._parts.settings.keep_alive_s)
        span = self._parts.host.tracer.serve(
            f"POST {self._route}",
            exchange.headers.items(),
            {"http.request.method": "POST", "http.route": self._route},
        )
        with span:
            await self._timed(exchange)

    async def _timed(self, exchange: Exchange) -> None:
        parts, started = self._parts, self._parts.clock.now()
        try:
            with parts.host.work(self._route):
                await self._serve(exchange, started)
        except CallerGone:
            exchange.status = _CALLER_LEFT_STATUS
            current().set({"disagg.cancelled": True})
        except Exception as error:
            await self._fail(exchange, error)
        finally:
            current().set({"http.response.status_code": exchange.status or _CALLER_LEFT_STATUS})
            parts.metrics.observe(
                "http_server_request_duration_seconds",
                parts.clock.now() - started,
                http_request_method="POST",
                http_route=self._route,
                http_response_status_code=str(exchange.status or _CALLER_LEFT_STATUS),
            )

    async def _serve(self, exchange: Exchange, arrived_at: float) -> None:
        settings = self._parts.settings
        named = check_request_id(exchange.headers.get(REQUEST_ID_HEADER, ""), REQUEST_ID_HEADER)
        exchange.answer_headers[REQUEST_ID_HEADER] = named
        timeout_s = _header_s(exchange, TIMEOUT_HEADER, "the milliseconds the request may take")
        targets = {
            name: _header_s(exchange, header, "the milliseconds to aim at")
            for header, name in TARGET_HEADERS.items()
        }
        data = await exchange.read(
            max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s
        )
        fields = Fields(await _parsed(data))
        if self._route == CHAT:
            asked = read_chat(fields)
        else:
            asked = read_completion(fields, max_prompts=settings.max_prompts)
        self._judge_unknown(asked.unknown)
        if asked.request_id and REQUEST_ID_HEADER not in exchange.headers:
            named = check_request_id(asked.request_id)
        exchange.answer_headers |= {REQUEST_ID_HEADER: named, "x-disagg-decision-id": named}
        for message in asked.messages:
            for name, value in targets.items():
                if value is not None:
                    setattr(message, name, value)
        with request_scope(request_id=named):
            check_model(asked.messages[0].model, self._parts.intake.card)
            requests = [
                await self._checked(
                    message,
                    _id_of(named, number, asked),
                    arrived_at,
                    timeout_s,
                    number=number if len(asked.messages) > 1 else None,
                )
                for number, message in enumerate(asked.messages)
            ]
            # Of the call, where each of its prompts is a request with an id of its own.
            current().set(
                {
                    "disagg.request_id": named,
                    "gen_ai.response.id": named,
                    "gen_ai.request.stream": asked.is_stream,
                    "gen_ai.request.choice.count": len(asked.messages),
                }
            )
            allowed_ms = round((requests[0].deadline - requests[0].arrived_at) * 1000)
            if timeout_s is not None and round(timeout_s * 1000) > allowed_ms:
                exchange.answer_headers[TIMEOUT_HEADER] = str(allowed_ms)
            exchange.answer_headers["x-disagg-seed"] = str(requests[0].sampling.seed)
            await exchange.while_connected(
                lambda: self._answer(exchange, asked, requests, named), is_stream=asked.is_stream
            )

    async def _answer(
        self, exchange: Exchange, asked: Asked, requests: list[Request], request_id: str
    ) -> None:
        form = self._form(asked, request_id)
        answers = [
            self._empty_answer(asked, request, number) for number, request in enumerate(requests)
        ]
        if len(requests) == 1:
            await self._run(exchange, asked, form, requests[0], answers[0])
        else:
            async with asyncio.TaskGroup() as group:
                for request, answer in zip(requests, answers, strict=True):
                    group.create_task(self._run(exchange, asked, form, request, answer))
        if not asked.is_stream:
            await exchange.json(form.whole(answers))
            return
        if asked.has_usage:
            await exchange.event(form.usage_chunk(answers))
        await exchange.done()

    async def _run(
        self, exchange: Exchange, asked: Asked, form: Form, request: Request, answer: Answer
    ) -> None:
        async def emit(delta: Delta) -> None:
            chunk = form.chunk(answer, delta)
            if asked.is_stream:
                await exchange.event(chunk)

        final = await self._parts.pipeline.run(request, emit)
        chunk = form.end(answer, final)
        if asked.is_stream:
            await exchange.event(chunk)

    async def _checked(
        self,
        message: generation_pb2.GenerateRequest,
        request_id: str,
        arrived_at: float,
        timeout_s: float | None,
        *,
        number: int | None,
    ) -> Request:
        intake = self._parts.intake
        token_ids = await intake.encode(message)
        if not token_ids and number is not None:
            raise bad_field(f"prompt[{number}]", "empty; send text or token ids, or leave it out")
        if not message.sampling.HasField("max_tokens"):
            room = intake.card.max_model_len - len(token_ids)
            message.sampling.max_tokens = max(0, min(self._parts.settings.chat_max_tokens, room))
        return intake.check(
            message,
            request_id=request_id,
            token_ids=token_ids,
            arrived_at=arrived_at,
            timeout_s=timeout_s,
            endpoint="chat" if self._route == CHAT else "completions",
        )

    def _form(self, asked: Asked, request_id: str) -> Form:
        parts = self._parts
        field = parts.settings.reasoning_field
        return Form(
            asked,
            parts.intake.codec,
            request_id=request_id,
            model=parts.intake.card.name,
            created=int(parts.clock.wall()),
            system_fingerprint=system_fingerprint(parts.version, parts.fingerprint()),
            reasoning_fields=("reasoning_content", "reasoning") if field == "both" else (field,),
        )

    def _empty_answer(self, asked: Asked, request: Request, number: int) -> Answer:
        codec = self._parts.intake.codec
        marks = codec.thinking_marks
        is_thinking = marks is not None and request.token_ids[-1] == marks.begin_id
        return Answer(
            index=number,
            prompt_ids=request.token_ids,
            splitter=ReasoningSplitter(marks, is_thinking=asked.is_chat and is_thinking),
            calls=(
                ToolCallParser(codec.form, f"call_{request.public_id}")
                if codec.form is not None and asked.messages[number].chat.tools
                else None
            ),
            echo=codec.decode(request.token_ids) if asked.echo else "",
        )

    def _judge_unknown(self, names: tuple[str, ...]) -> None:
        """Unknown fields are counted, or refused if the settings say so."""
        if names and self._parts.settings.strict_fields:
            raise InvalidRequest(
                f"{', '.join(names)}: not known here; leave it out",
                reason=Reason.UNSUPPORTED_PARAMETER,
                violations=tuple(
                    FieldViolation(field=name, description="not known here") for name in names
                ),
            )
        for name in names:
            # Never the caller's own words: they would be series of ours for good.
            field = name if name in UNKNOWN_FIELDS else OTHER_FIELD
            self._parts.metrics.count("disagg_http_unknown_fields_total", field=field)

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        """The one place that makes answers of errors."""
        known = translate(self._parts.errors, error)
        if known is None or known.reason is Reason.INVARIANT_BROKEN:
            known = incident(f"POST {self._route}", error, self._parts.metrics)
        current().fail(known)
        await exchange.problem(problem_of(known))


def system_fingerprint(version: str, layout: str) -> str:
    """Equal seeds promise equal text only under an equal value of this."""
    digest = hashlib.sha256(f"{version}:{layout}".encode()).hexdigest()
    return f"fp_{digest[:12]}"


def _id_of(request_id: str, number: int, asked: Asked) -> str:
    return request_id if len(asked.messages) == 1 else check_request_id(f"{request_id}-{number}")


def _header_s(exchange: Exchange, name: str, what: str) -> float | None:
    """The milliseconds of a header, in seconds; None without it.

    Raises:
        InvalidRequest: It is no positive whole number.
    """
    text = exchange.headers.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or not text.strip("0"):
        raise bad_field(name, f"send {what}, 1 or more")
    return int(text.lstrip("0")[:_MAX_MS_DIGITS]) / 1000


async def _parsed(data: bytes) -> dict[str, object]:
    """The JSON object of a body; a long one is read in a thread."""
    if len(data) <= _LONG_BODY_BYTES:
        return dict(parse_body(data))
    return dict(await asyncio.to_thread(parse_body, data))
