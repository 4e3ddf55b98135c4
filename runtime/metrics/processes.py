"""Rows of the metric table about a process as such: its calls, doors, readiness and secrets."""

from __future__ import annotations

from runtime.metrics.rows import (
    BALANCER,
    MEMBERS,
    SERVING,
    STORE,
    STORE_BUCKETS,
    TTFT_BUCKETS,
    Metric,
    counter,
    gauge,
    histogram,
)

_METHODS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "disagg.v1.GenerationService/Generate",
    "disagg.v1.RoutingService/Route",
    "disagg.v1.MembershipService/Heartbeat",
    "disagg.v1.PrefillService/Prefill",
    "disagg.v1.DecodeService/Decode",
    "disagg.v1.DecodeService/Prefetch",
    "disagg.v1.DecodeService/ReserveSlot",
    "disagg.v1.DecodeService/ReleaseSlot",
    "vllm.grpc.engine.VllmEngine/Generate",
    "/metrics",
)
"""What requests come through; a defect of another method appears with its first exception."""

UNKNOWN_FIELDS = (
    *("moderation", "prediction", "prompt_cache_retention", "verbosity", "web_search_options"),
    *("add_special_tokens", "allowed_token_ids", "bad_words", "chat_template", "documents"),
    *("guided_grammar", "include_reasoning", "kv_transfer_params", "length_penalty"),
    *("logits_processors", "mm_processor_kwargs", "prompt_embeds", "prompt_logprobs"),
    *("return_tokens_as_token_ids", "vllm_xargs"),
)
"""Fields of OpenAI's and vLLM's bodies without a meaning here; the only ones that are named."""
OTHER_FIELD = "other"

PROCESS_ROWS: tuple[Metric, ...] = (
    histogram(
        "rpc_server_call_duration_seconds",
        "Calls served.",
        TTFT_BUCKETS,
        *("rpc_method", "rpc_response_status_code"),
        roles=SERVING,
        has_exemplars=True,
    ),
    histogram(
        "rpc_client_call_duration_seconds",
        "Calls made to members.",
        TTFT_BUCKETS,
        *("rpc_method", "rpc_response_status_code"),
        roles=(BALANCER,),
        has_exemplars=True,
    ),
    histogram(
        "http_server_request_duration_seconds",
        "HTTP calls served.",
        TTFT_BUCKETS,
        *("http_request_method", "http_route", "http_response_status_code"),
        roles=(BALANCER,),
        has_exemplars=True,
    ),
    counter(
        "disagg_http_unknown_fields_total",
        "Fields of bodies without a meaning; other: not one that clients are known to send.",
        "field",
        roles=(BALANCER,),
        known={"field": (*UNKNOWN_FIELDS, OTHER_FIELD)},
    ),
    counter(
        "disagg_http_refused_total",
        "Connections dropped and calls refused before the HTTP face saw them.",
        "cause",
        roles=(BALANCER,),
        known={"cause": ("slow_head", "too_many_connections", "too_many_calls", "denied")},
    ),
    counter(
        "disagg_internal_errors_total",
        "Exceptions nobody translated.",
        "method",
        roles=SERVING,
        known={"method": _METHODS},
    ),
    counter(
        "disagg_scrapes_dropped_total",
        "Callers of this page that got no answer: late, pushed out by newer ones, gone, or while "
        "an earlier answer was not ready.",
        "cause",
        roles=(*SERVING, STORE),
        known={"cause": ("slow", "too_many", "left", "busy")},
    ),
    counter(
        "disagg_readiness_transitions_total",
        "Changes of readiness; down: the cause of it, or `drain`.",
        *("to", "cause"),
        roles=SERVING,
        known=(
            {"to": ("ready",), "cause": ("", "undrain")},
            {
                "to": ("down",),
                "cause": (
                    *("drain", "no_members", "store_down", "group_incomplete", "loop_failed"),
                    "loop_stuck",
                ),
            },
        ),
    ),
    histogram(
        "disagg_event_loop_delay_seconds",
        "How much later than asked for the event loop wakes up.",
        STORE_BUCKETS,
        "role",
        roles=SERVING,
    ),
    counter(
        "disagg_stream_messages_total", "Messages of streams that were sent.", "role", roles=SERVING
    ),
    counter(
        "disagg_receiver_lookups_total",
        "Looks for the balancers that a name stands for; other than ok: why those known are kept.",
        "outcome",
        roles=MEMBERS,
        known={"outcome": ("ok", "unknown", "no_answer", "malformed")},
    ),
    gauge("disagg_worker_ready", "1 while this process takes new work.", "role", roles=SERVING),
    gauge("disagg_draining", "1 while this process drains.", "role", roles=SERVING),
    gauge(
        "disagg_secret_reload_success",
        "0 while a file with a secret could not be read again.",
        *("role", "secret"),
        roles=(),
    ),
    gauge(
        "disagg_tls_cert_expiry_timestamp_seconds",
        "When the first of the certificates in use ends, in seconds since 1970.",
        "role",
        roles=(),
    ),
    gauge(
        "disagg_build_info",
        "Always 1.",
        *("role", "version", "revision", "fingerprint"),
        roles=(*SERVING, STORE),
    ),
)
