"""Every span of the project in one table: names, kinds, and what a span may say.

Names are public, like those of metrics. Spans of remote calls are not listed one by one: they are
named after their method, or after method and route of HTTP, and carry `rpc.` or `http.` attributes.
The type checker holds code to these names, so there is nothing to check at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["internal", "client", "server"]
Value = str | bool | int | float | Sequence[str]

SpanName = Literal[
    "balancer.text",
    "balancer.admit",
    "balancer.route",
    "prefill.queue",
    "prefill.lookup",
    "prefill.load_prefix",
    "prefill.compute",
    "prefill.publish",
    "prefill.commit",
    "decode.queue",
    "decode.fetch",
    "decode.generate",
    "kvstore.put",
    "kvstore.get",
    "kvstore.commit",
    "kvstore.lease",
    "engine.step",
]
EventName = Literal["first_token", "last_token", "chunk"]
LinkKind = Literal["kv_handoff", "kv_prefix_reuse", "retry_of", "step_of"]
LINK_KIND: Final = "disagg.link.kind"
MAX_CHUNK_EVENTS: Final = 32
MAX_PREFIX_LINKS: Final = 8
MAX_STEP_LINKS: Final = 32

Attribute = Literal[
    # Of the request, on the span of the front door alone: dashboards add up what carries them.
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.request.max_tokens",
    "gen_ai.request.temperature",
    "gen_ai.request.top_p",
    "gen_ai.request.top_k",
    "gen_ai.request.seed",
    "gen_ai.request.stream",
    "gen_ai.request.choice.count",
    "gen_ai.request.reasoning.level",
    "gen_ai.response.id",
    "gen_ai.response.model",
    "gen_ai.response.finish_reasons",
    "gen_ai.response.time_to_first_chunk",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.reasoning.output_tokens",
    # The same once more, as vLLM spells it; only where `tracing.vllm_attributes` asks for it.
    "gen_ai.request.id",
    "gen_ai.latency.time_in_queue",
    "gen_ai.latency.time_to_first_token",
    "gen_ai.latency.e2e",
    "gen_ai.latency.time_in_model_prefill",
    "gen_ai.latency.time_in_model_decode",
    # Of remote calls.
    "rpc.system.name",
    "rpc.method",
    "rpc.response.status_code",
    "rpc.system",
    "rpc.service",
    "rpc.grpc.status_code",
    "http.request.method",
    "http.route",
    "http.response.status_code",
    "server.address",
    "server.port",
    "network.peer.address",
    "db.system.name",
    "db.operation.name",
    "error.type",
    # Ours.
    "disagg.request_id",
    "disagg.attempt",
    "disagg.tier",
    "disagg.stop_sequences",
    "disagg.cancelled",
    "disagg.prompt_tokens",
    "disagg.cached_tokens",
    "disagg.computed_tokens",
    "disagg.output_tokens",
    "disagg.handoff_id",
    "disagg.queue",
    "disagg.steps",
    "disagg.sequences",
    "disagg.tpot_ms",
    "disagg.max_gap_ms",
    "disagg.verified",
    "disagg.link.kind",
    "disagg.route.policy",
    "disagg.route.decision_id",
    "disagg.route.candidates",
    "disagg.route.prefill",
    "disagg.route.decode",
    "disagg.route.margin",
    "disagg.kv.blocks",
    "disagg.kv.bytes",
    "disagg.kv.segments",
    "disagg.kv.fingerprint",
    "disagg.kv.hit_blocks",
    "disagg.kv.miss_blocks",
    "disagg.kv.prefetched_bytes",
]
Attributes = Mapping[Attribute, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow:
    """One row of the table: what a span of this name may carry, beside its error.

    Attributes:
        parent: What it stands below; the server span of its process if empty.
    """

    kind: Kind
    attributes: tuple[Attribute, ...] = ()
    events: tuple[EventName, ...] = ()
    links: tuple[LinkKind, ...] = ()
    parent: SpanName | Literal[""] = ""


ERROR_ATTRIBUTES: Final[tuple[Attribute, ...]] = ("error.type", "disagg.cancelled")
_KV: Final[tuple[Attribute, ...]] = ("disagg.kv.blocks", "disagg.kv.bytes")
_STORE: Final[tuple[Attribute, ...]] = (
    *("db.system.name", "db.operation.name", "server.address", "server.port"),
    *_KV,
)

SPANS: Final[Mapping[SpanName, SpanRow]] = {
    "balancer.text": SpanRow(kind="internal", attributes=("disagg.prompt_tokens",)),
    "balancer.admit": SpanRow(kind="internal", attributes=("disagg.tier",)),
    "balancer.route": SpanRow(
        kind="internal",
        attributes=(
            "disagg.attempt",
            "disagg.route.policy",
            "disagg.route.decision_id",
            "disagg.route.candidates",
            "disagg.route.prefill",
            "disagg.route.decode",
            "disagg.route.margin",
        ),
    ),
    "prefill.queue": SpanRow(kind="internal", attributes=("disagg.queue",)),
    "prefill.lookup": SpanRow(
        kind="internal", attributes=("disagg.kv.hit_blocks", "disagg.kv.miss_blocks")
    ),
    "prefill.load_prefix": SpanRow(
        kind="internal", attributes=("disagg.cached_tokens", *_KV), links=("kv_prefix_reuse",)
    ),
    "prefill.compute": SpanRow(
        kind="internal", attributes=("disagg.computed_tokens",), events=("chunk",)
    ),
    "prefill.publish": SpanRow(
        kind="internal", attributes=(*_KV, "disagg.kv.segments", "disagg.kv.fingerprint")
    ),
    "prefill.commit": SpanRow(kind="internal", attributes=("disagg.handoff_id",)),
    "decode.queue": SpanRow(kind="internal", attributes=("disagg.queue",)),
    "decode.fetch": SpanRow(
        kind="internal",
        attributes=("disagg.kv.bytes", "disagg.kv.prefetched_bytes", "disagg.verified"),
        links=("kv_handoff",),
    ),
    "decode.generate": SpanRow(
        kind="internal",
        attributes=(
            "disagg.output_tokens",
            "disagg.steps",
            "disagg.tpot_ms",
            "disagg.max_gap_ms",
        ),
        events=("first_token",),
    ),
    "kvstore.put": SpanRow(kind="client", attributes=_STORE, parent="prefill.publish"),
    "kvstore.commit": SpanRow(kind="client", attributes=_STORE, parent="prefill.publish"),
    "kvstore.get": SpanRow(kind="client", attributes=_STORE),
    "kvstore.lease": SpanRow(kind="client", attributes=_STORE, parent="decode.fetch"),
    "engine.step": SpanRow(kind="internal", attributes=("disagg.sequences",), links=("step_of",)),
}
