"""Every metric of the project: names, units, labels, buckets, and which processes export it.

Names are public: changing one breaks dashboards, so the dashboards, the rules and this table are
held together by tests. A row is exported with its known label values at zero from the start, so
that a rate exists before the first event. Rows that any process may have are in `processes`, names
of vLLM in `aliases`.
"""

from __future__ import annotations

from runtime.metrics.aliases import ALIAS_ROWS
from runtime.metrics.processes import PROCESS_ROWS
from runtime.metrics.rows import (
    BALANCER,
    BYTE_BUCKETS,
    DECODE,
    ITL_BUCKETS,
    MEMBERS,
    PHASE_BUCKETS,
    PREFILL,
    SERVING,
    STORE,
    STORE_BUCKETS,
    TOKEN_BUCKETS,
    TTFT_BUCKETS,
    Metric,
    counter,
    gauge,
    histogram,
)

_GEN_AI = (
    *("gen_ai_request_model", "gen_ai_operation_name", "gen_ai_provider_name", "tier"),
    "error_type",
)
_COMPONENTS = ("kv", "state", "tail_kv", "tail_state")
_DAMAGED = (*_COMPONENTS, "body")
_ENDPOINTS = ("generate", "chat", "completions", "route", "engine")
# Of failures of ours all, since a burst of them has to be seen; what the request is to blame for
# appears when it comes.
_FAULTS = (
    *("QUEUE_FULL", "POOL_FULL", "NO_PREFILL", "NO_DECODE", "DRAINING", "PEER_GONE", "STORE_DOWN"),
    *("FIRST_TOKEN_LATE", "DEADLINE", "KV_LAYOUT_DIFFERS", "CHECKSUM_DIFFERS", "BLOCK_EVICTED"),
    *("LEASE_LOST", "STREAM_INTERRUPTED", "INVARIANT_BROKEN", "DUPLICATE_REQUEST"),
)
_MISSING = tuple(f"missing_{component}" for component in _COMPONENTS[:2])
_CORRUPT = tuple(
    f"corrupt_{check}"
    for check in (
        *("magic", "version", "reserved", "count", "length", "tag", "fingerprint", "digest"),
        *("chain", "form", "conflict", "attempt"),
    )
)

_REQUESTS: tuple[Metric, ...] = (
    histogram(
        "gen_ai_server_request_duration_seconds",
        "Arrival to the end of the answer.",
        PHASE_BUCKETS,
        *_GEN_AI,
        roles=(BALANCER,),
        has_exemplars=True,
    ),
    histogram(
        "gen_ai_server_time_to_first_token_seconds",
        "Arrival to first token.",
        TTFT_BUCKETS,
        *_GEN_AI,
        roles=(BALANCER,),
        has_exemplars=True,
    ),
    histogram(
        "gen_ai_server_time_per_output_token_seconds",
        "Mean gap of the tokens of a request.",
        ITL_BUCKETS,
        *_GEN_AI,
        roles=(BALANCER,),
        has_exemplars=True,
    ),
    counter(
        "disagg_requests_total",
        "Requests ended.",
        *("model_name", "endpoint", "outcome", "reason"),
        roles=(BALANCER,),
        known=(
            {
                "endpoint": _ENDPOINTS,
                "outcome": ("stop", "length", "abort"),
                "reason": ("",),
            },
            {"endpoint": ("route",), "outcome": ("routed",), "reason": ("",)},
            {"endpoint": _ENDPOINTS, "outcome": ("abort",), "reason": ("CALLER_LEFT",)},
            {"endpoint": _ENDPOINTS, "outcome": ("failed",), "reason": _FAULTS},
        ),
    ),
    counter(
        "disagg_slo_requests_total",
        "Requests by whether they kept their targets; without those whose caller left.",
        *("model_name", "tier", "verdict"),
        roles=(BALANCER,),
        known={"verdict": ("good", "late_first_token", "slow_tokens", "failed")},
    ),
    gauge(
        "disagg_requests_running",
        "Requests that run.",
        *("model_name", "role", "tier"),
        roles=SERVING,
    ),
    gauge(
        "disagg_requests_waiting",
        "Requests that wait.",
        *("model_name", "role", "tier"),
        roles=SERVING,
    ),
    histogram(
        "disagg_inter_token_latency_seconds",
        "Gap between tokens of an answer.",
        ITL_BUCKETS,
        "model_name",
        roles=(BALANCER,),
        has_exemplars=True,
    ),
    histogram(
        "disagg_max_token_gap_seconds",
        "Longest gap between tokens of an answer.",
        ITL_BUCKETS,
        "model_name",
        roles=(BALANCER,),
        has_exemplars=True,
    ),
    histogram(
        "disagg_phase_duration_seconds",
        "Parts of a request, each told by the process that does it.",
        PHASE_BUCKETS,
        "phase",
        roles=SERVING,
        has_exemplars=True,
    ),
    counter(
        "disagg_prompt_tokens_total",
        "Prompt tokens by where their KV came from.",
        *("model_name", "source"),
        roles=(PREFILL,),
        known={"source": ("computed", "store_hit", "replayed")},
    ),
    counter(
        "disagg_request_prompt_tokens_total",
        "Prompt tokens of requests that ended, as their callers are told.",
        *("model_name", "source"),
        roles=(BALANCER,),
        known={"source": ("computed", "store_hit")},
    ),
    counter("disagg_generated_tokens_total", "Tokens handed out.", "model_name", roles=(BALANCER,)),
    counter(
        "disagg_dropped_tokens_total",
        "Tokens that came twice or from an old attempt.",
        roles=(BALANCER,),
    ),
    counter(
        "disagg_admission_rejections_total",
        "Requests refused at the door.",
        "reason",
        roles=(BALANCER,),
        known={"reason": ("QUEUE_FULL", "TOO_LATE", "SLO_MISSED", "POOL_FULL")},
    ),
    counter(
        "disagg_redispatch_total",
        "Requests sent to another member.",
        *("stage", "reason"),
        roles=(BALANCER,),
        known={
            "stage": ("reserve", "prefill", "decode"),
            "reason": (
                *("corrupt", "evicted", "lease_lost", "stale_attempt", "peer_gone", "draining"),
                *("store_down", "interrupted", "overload", "layout", "still_running"),
                "broken_stream",
            ),
        },
    ),
    counter(
        "disagg_cancellations_total",
        "Requests cancelled.",
        *("stage", "origin"),
        roles=(BALANCER,),
        known={
            "stage": ("reserve", "prefill", "decode"),
            "origin": ("client", "deadline", "drain"),
        },
    ),
)

_PLACEMENT: tuple[Metric, ...] = (
    counter(
        "disagg_route_decisions_total",
        "Placements.",
        *("policy", "tier", "outcome"),
        roles=(BALANCER,),
        known={"outcome": ("pair", "hold", "reject", "none", "full")},
    ),
    histogram(
        "disagg_route_candidates",
        "Members that a placement chose among.",
        TOKEN_BUCKETS[:13],
        *("policy", "tier", "outcome"),
        roles=(BALANCER,),
    ),
    gauge("disagg_tier_engines", "Prefill engines of a length class.", "tier", roles=(BALANCER,)),
    gauge(
        "disagg_tier_quota_tokens",
        "Prompt tokens handed out in the last round.",
        "tier",
        roles=(BALANCER,),
    ),
    gauge(
        "disagg_tier_backlog_tokens",
        "Prompt tokens whose prefill is not over.",
        "tier",
        roles=(BALANCER,),
    ),
    gauge(
        "disagg_decode_imbalance_ratio",
        "Largest over mean load of ranks.",
        "axis",
        roles=(BALANCER,),
    ),
    gauge(
        "disagg_members",
        "Members that announce themselves, by what hinders them (`ready`: nothing).",
        *("role", "state"),
        roles=(BALANCER,),
        known={
            "role": MEMBERS,
            "state": (
                "ready",
                "not_ready",
                "draining",
                "stale",
                "suspect",
                "group_incomplete",
                "mismatch",
            ),
        },
    ),
    gauge(
        "disagg_groups",
        "Groups of ranks, by whether all their members are ready.",
        *("role", "state"),
        roles=(BALANCER,),
        known={"role": MEMBERS, "state": ("complete", "incomplete")},
    ),
    counter(
        "disagg_recording_dropped_total",
        "Lines of a recording that were dropped.",
        roles=(BALANCER,),
    ),
    counter(
        "disagg_prefix_fallback_total",
        "Stored prefixes given up, by cause.",
        "cause",
        roles=(BALANCER, PREFILL),
        known={
            "cause": ("bypassed", "lookup_late", "lookup_failed", *_MISSING, *_CORRUPT),
        },
    ),
)

_ENGINES: tuple[Metric, ...] = (
    gauge("disagg_decode_kv_tokens", "KV tokens in use.", "dp_rank", roles=(DECODE,)),
    gauge("disagg_decode_kv_capacity_tokens", "KV tokens that fit.", "dp_rank", roles=(DECODE,)),
    Metric(
        name="disagg_decode_step_seconds",
        kind="histogram",
        help="Engine steps with sequences, vote and sampling included.",
        buckets=STORE_BUCKETS,
        roles=(DECODE,),
        per_rank=True,
    ),
    Metric(
        name="disagg_decode_batch_size",
        kind="histogram",
        help="Sequences of such a step.",
        buckets=TOKEN_BUCKETS[:11],
        roles=(DECODE,),
        per_rank=True,
    ),
    counter("disagg_decode_steps_total", "Steps with sequences.", roles=(DECODE,)),
    counter("disagg_decode_placeholder_steps_total", "Steps without a sequence.", roles=(DECODE,)),
    gauge(
        "disagg_progress_age_seconds", "Age of the engine's last progress.", "role", roles=MEMBERS
    ),
)

_HANDOFFS: tuple[Metric, ...] = (
    counter(
        "disagg_handoff_total",
        "Hand-offs read by decode.",
        "outcome",
        roles=(DECODE,),
        known={
            "outcome": (
                *("ok", "evicted", "lease_lost", "corrupt", "layout_differs", "store_down"),
                *("store_refused", "stale_attempt"),
            ),
        },
    ),
    counter(
        "disagg_prefetch_total",
        "Hand-offs read before their ticket, by end; overtaken: their sequence was there first. Of "
        "the balancer: calls that broke.",
        "outcome",
        roles=(BALANCER, DECODE),
        known={
            "outcome": (
                *("used", "abandoned", "overtaken", "other_tokens", "no_room", "store_down"),
                *(_MISSING[0], *_CORRUPT[:9], "peer_gone", "deadline", "checksum_differs"),
            ),
        },
    ),
    counter(
        "disagg_prefetch_blocks_total",
        "Blocks read before their ticket.",
        "result",
        roles=(DECODE,),
        known={"result": ("used", "refused", "unused")},
    ),
    histogram(
        "disagg_handoff_duration_seconds",
        "Ticket to verified state.",
        STORE_BUCKETS,
        roles=(DECODE,),
        has_exemplars=True,
    ),
    histogram("disagg_handoff_bytes", "Bytes of a hand-off.", BYTE_BUCKETS, roles=(DECODE,)),
)

_STORE_ROWS: tuple[Metric, ...] = (
    counter(
        "disagg_kv_lookup_blocks_total",
        "Blocks looked up; partial: stored, but without a state to resume from.",
        "result",
        roles=(PREFILL,),
        known={"result": ("hit", "miss", "partial")},
    ),
    counter(
        "disagg_kv_written_segments_total",
        "Segments written; present: the same bytes were there.",
        *("outcome", "component"),
        roles=(PREFILL,),
        known={"outcome": ("new", "present", "conflict"), "component": _COMPONENTS},
    ),
    counter(
        "disagg_kv_read_segments_total",
        "Segments read, each by itself; corrupt: every one that failed a check.",
        *("outcome", "component"),
        roles=MEMBERS,
        known={"outcome": ("ok", "missing", "corrupt"), "component": _COMPONENTS},
    ),
    counter(
        "disagg_kv_written_bytes_total",
        "Bytes written to the store.",
        "component",
        roles=(PREFILL,),
        known={"component": _COMPONENTS},
    ),
    counter(
        "disagg_kv_read_bytes_total",
        "Bytes read from the store and verified.",
        "component",
        roles=MEMBERS,
        known={"component": _COMPONENTS},
    ),
    histogram(
        "disagg_kv_op_duration_seconds",
        "Operations on the store.",
        STORE_BUCKETS,
        "op",
        roles=SERVING,
        has_exemplars=True,
    ),
    counter(
        "disagg_kv_early_evictions_total",
        "Payloads of hand-offs that were gone before their reader came.",
        "component",
        roles=(DECODE,),
        known={"component": _DAMAGED},
    ),
    counter(
        "disagg_kv_checksum_failures_total",
        "Reads and writes that a damaged value ended, each once, by the first component found "
        "damaged; the segments are those of disagg_kv_read_segments_total with outcome corrupt.",
        "component",
        roles=MEMBERS,
        known={"component": _DAMAGED},
    ),
    gauge("disagg_kv_leases", "Hand-offs in the store that nobody released.", roles=(STORE,)),
    gauge("disagg_kv_handoff_bytes", "Bytes of those hand-offs.", roles=(STORE,)),
    counter(
        "disagg_kv_lease_expired_total",
        "Hand-offs reaped because nobody released them in time.",
        "component",
        roles=(STORE,),
        known={"component": ("ticket",)},
    ),
    counter(
        "disagg_kv_janitor_rounds_total",
        "Rounds of the janitor by end; other than ok: the cause of a failure.",
        "outcome",
        roles=(STORE,),
        known={"outcome": ("ok", "store_down", "store_refused", "internal")},
    ),
    gauge("disagg_kv_store_up", "1 while the store answers.", roles=(BALANCER,)),
    gauge("disagg_kv_store_used_bytes", "Memory in use in the store.", "shard", roles=(BALANCER,)),
    gauge(
        "disagg_kv_store_limit_bytes",
        "Memory the store may use; 0: no limit.",
        "shard",
        roles=(BALANCER,),
    ),
    counter(
        "disagg_kv_evictions_total",
        "Keys that servers of the store dropped by themselves while the janitor looked.",
        "cause",
        roles=(STORE,),
        known={"cause": ("memory", "ttl")},
    ),
    counter(
        "disagg_kv_events_published_total",
        "KV events handed to the publisher.",
        "type",
        roles=(),
    ),
    counter(
        "disagg_kv_events_dropped_total",
        "Times a slow reader lost events for good; `batch`: of the stream over gRPC.",
        "type",
        roles=(),
    ),
)

TABLE: tuple[Metric, ...] = (
    *_REQUESTS,
    *_PLACEMENT,
    *_ENGINES,
    *_HANDOFFS,
    *_STORE_ROWS,
    *PROCESS_ROWS,
    *ALIAS_ROWS,
)
