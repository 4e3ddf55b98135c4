"""From what a caller sent to a checked `Request`: one way in, whatever the face.

The gRPC face, the HTTP face and the facade for gateways all fill the same wire request and hand it
over here, so a bad value is found by the same check and a default is chosen in one place.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Sequence

from balancer.journey.request import Request
from balancer.text import ChatTurn, ModelCard, TextCodec, ToolCall
from balancer.tracing import describe_request
from balancer.validation import bad_field, check_generate, check_model
from disagg.v1 import generation_pb2
from runtime.access import current_tenant, salt_of, scoped_id
from runtime.clock import Clock
from runtime.telemetry import current

Encodable = generation_pb2.GenerateRequest | generation_pb2.TokenizeRequest

# Prompts longer than this are encoded in a thread: about a millisecond of work.
_LONG_TEXT_CHARS = 4_000


def _nobody(_seconds: float) -> None:
    """Nobody measures."""


class Intake:
    """Checks and completes requests; belongs to one event loop.

    Args:
        on_text: Told how long a prompt took to encode, in seconds.
        default_timeout_s: For calls that come without a deadline.
        max_timeout_s: Longest time a request may take; longer deadlines are cut.
    """

    def __init__(
        self,
        *,
        codec: TextCodec,
        clock: Clock,
        default_timeout_s: float,
        max_timeout_s: float,
        on_text: Callable[[float], None] = _nobody,
    ) -> None:
        self.codec = codec
        self._on_text = on_text
        self._clock = clock
        self._default_timeout_s = default_timeout_s
        self._max_timeout_s = max_timeout_s

    @property
    def card(self) -> ModelCard:
        """The model that is served."""
        return self.codec.card

    def now(self) -> float:
        """Seconds of the clock that `arrived_at` is told in."""
        return self._clock.now()

    async def encode(self, message: Encodable) -> list[int]:
        """Token ids of the prompt, whichever form it has.

        Raises:
            InvalidRequest: There is no prompt.
            TextError: The prompt cannot be encoded.
        """
        began = self._clock.now()
        with current().child("balancer.text") as span:
            token_ids = await self._encode(message)
            span.set({"disagg.prompt_tokens": len(token_ids)})
        self._on_text(self._clock.now() - began)
        return token_ids

    async def _encode(self, message: Encodable) -> list[int]:
        match message.WhichOneof("prompt"):
            case "text":
                if len(message.text) <= _LONG_TEXT_CHARS:
                    return self.codec.encode_text(message.text)
                return await asyncio.to_thread(self.codec.encode_text, message.text)
            case "chat":
                chat = message.chat
                return await asyncio.to_thread(
                    self.codec.encode_chat,
                    list(map(_turn, chat.messages)),
                    thinking=chat.thinking if chat.HasField("thinking") else None,
                    effort=chat.reasoning_effort,
                    tools=_tools(chat),
                    drop_thinking=not chat.keep_thinking,
                )
            case "token_ids" if isinstance(message, generation_pb2.GenerateRequest):
                ids = list(message.token_ids.ids)
                self.codec.check_ids(ids, "token_ids.ids")
                return ids
            case _:
                raise bad_field("prompt", "there is none; send text, chat or token_ids")

    def check(
        self,
        message: generation_pb2.GenerateRequest,
        *,
        request_id: str,
        token_ids: Sequence[int],
        arrived_at: float,
        timeout_s: float | None,
        endpoint: str = "generate",
    ) -> Request:
        """The checked request, with its deadline.

        Args:
            token_ids: What `encode` made of the prompt.
            timeout_s: Counted from `arrived_at`; None if the caller named none.
            endpoint: What was called; see `Request`.

        Raises:
            InvalidRequest, NotFound: See `balancer.validation`.
        """
        check_model(message.model, self.codec.card)
        allowed_s = self._default_timeout_s if timeout_s is None else timeout_s
        request = check_generate(
            message,
            request_id=request_id,
            token_ids=token_ids,
            card=self.codec.card,
            arrived_at=arrived_at,
            deadline=arrived_at + min(allowed_s, self._max_timeout_s),
        )
        is_chat = message.WhichOneof("prompt") == "chat"
        request = dataclasses.replace(request, endpoint=endpoint, is_chat=is_chat)
        describe_request(current(), message, request, model=self.card.name)
        tenant = current_tenant()
        if tenant is None:
            return request
        salt = salt_of(tenant, request.cache_salt)
        return dataclasses.replace(
            request,
            request_id=scoped_id(tenant, request_id),
            named=request_id,
            cache_salt=salt,
            owner=tenant,
        )


def _turn(message: generation_pb2.ChatMessage) -> ChatTurn:
    return ChatTurn(
        role=message.role,
        content=message.content,
        reasoning=message.reasoning,
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.name, arguments=call.arguments or "{}")
            for call in message.tool_calls
        ),
        tool_call_id=message.tool_call_id,
    )


def _tools(chat: generation_pb2.ChatPrompt) -> tuple[str, ...]:
    """The functions of a conversation.

    Raises:
        InvalidRequest: One is no JSON object.
    """
    for number, tool in enumerate(chat.tools):
        try:
            is_object = isinstance(json.loads(tool), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise bad_field(f"chat.tools[{number}]", "no JSON object; send name and parameters")
    return tuple(chat.tools)
