"""The names of vLLM that gateways, autoscalers and stock dashboards look for.

Most are another view of a row of ours, made when they are asked for (`ALIASES`), so they cost
nothing and never disagree; those that no row holds are rows (`ALIAS_ROWS`).
"""

from __future__ import annotations

from runtime.metrics.rows import (
    BALANCER,
    DECODE,
    MEMBERS,
    PREFILL,
    TOKEN_BUCKETS,
    Alias,
    Kind,
    Known,
    Metric,
)


def _alias_row(
    name: str,
    kind: Kind,
    text: str,
    *labels: str,
    roles: tuple[str, ...],
    buckets: tuple[float, ...] = (),
    known: tuple[Known, ...] = (),
) -> Metric:
    return Metric(
        name=name,
        kind=kind,
        help=text,
        labels=("model_name", "engine", *labels),
        buckets=buckets,
        roles=roles,
        known=known,
        is_alias=True,
    )


ALIAS_ROWS: tuple[Metric, ...] = (
    _alias_row(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "Waiting sequences by cause.",
        "reason",
        roles=MEMBERS,
        known=({"reason": ("capacity", "deferred")},),
    ),
    _alias_row(
        "vllm:kv_cache_usage_perc", "gauge", "Share of the KV pool in use, 0 to 1.", roles=MEMBERS
    ),
    _alias_row(
        "vllm:cache_config_info",
        "gauge",
        "Always 1.",
        *("block_size", "num_gpu_blocks"),
        roles=MEMBERS,
    ),
    _alias_row(
        "vllm:num_preemptions_total",
        "counter",
        "Times a sequence lost its memory.",
        roles=MEMBERS,
    ),
    _alias_row(
        "vllm:request_prompt_tokens",
        "histogram",
        "Tokens of prompts.",
        roles=(BALANCER,),
        buckets=TOKEN_BUCKETS,
    ),
    _alias_row(
        "vllm:request_generation_tokens",
        "histogram",
        "Tokens of answers.",
        roles=(BALANCER,),
        buckets=TOKEN_BUCKETS,
    ),
    _alias_row(
        "vllm:prefix_cache_queries_total",
        "counter",
        "Prompt tokens looked for in this engine's own cache of earlier prompts.",
        roles=(PREFILL,),
    ),
    _alias_row(
        "vllm:prefix_cache_hits_total",
        "counter",
        "Those found; always 0: engines keep nothing, the store does.",
        roles=(PREFILL,),
    ),
    _alias_row(
        "vllm:external_prefix_cache_queries_total",
        "counter",
        "Prompt tokens looked for in the shared store.",
        roles=(PREFILL,),
    ),
    _alias_row(
        "vllm:external_prefix_cache_hits_total",
        "counter",
        "Those found and loaded.",
        roles=(PREFILL,),
    ),
)

# Only members export what schedulers look at, only balancers latencies: both would double the sums
# of stock dashboards.
ALIASES: tuple[Alias, ...] = (
    Alias(
        name="vllm:num_requests_running",
        source="disagg_requests_running",
        help="Sequences that run.",
        roles=MEMBERS,
    ),
    Alias(
        name="vllm:num_requests_waiting",
        source="disagg_requests_waiting",
        help="Sequences that wait.",
        roles=MEMBERS,
    ),
    Alias(
        name="vllm:time_to_first_token_seconds",
        source="gen_ai_server_time_to_first_token_seconds",
        help="Arrival to first token.",
        roles=(BALANCER,),
    ),
    Alias(
        name="vllm:inter_token_latency_seconds",
        source="disagg_inter_token_latency_seconds",
        help="Gap between tokens of an answer.",
        roles=(BALANCER,),
    ),
    Alias(
        name="vllm:request_time_per_output_token_seconds",
        source="gen_ai_server_time_per_output_token_seconds",
        help="Mean gap of the tokens of a request.",
        roles=(BALANCER,),
    ),
    Alias(
        name="vllm:e2e_request_latency_seconds",
        source="gen_ai_server_request_duration_seconds",
        help="Arrival to the end of the answer.",
        roles=(BALANCER,),
    ),
    Alias(
        name="vllm:request_queue_time_seconds",
        source="disagg_phase_duration_seconds",
        help="Waiting for admission.",
        roles=(BALANCER,),
        where={"phase": "admit"},
    ),
    Alias(
        name="vllm:request_prefill_time_seconds",
        source="disagg_phase_duration_seconds",
        help="Computing prompts.",
        roles=(PREFILL,),
        where={"phase": "prefill"},
    ),
    Alias(
        name="vllm:request_decode_time_seconds",
        source="disagg_phase_duration_seconds",
        help="Generating after the first token.",
        roles=(DECODE,),
        where={"phase": "decode"},
    ),
    Alias(
        name="vllm:prompt_tokens_total",
        source="disagg_request_prompt_tokens_total",
        help="Prompt tokens of requests.",
        roles=(BALANCER,),
    ),
    Alias(
        name="vllm:generation_tokens_total",
        source="disagg_generated_tokens_total",
        help="Tokens handed out.",
        roles=(BALANCER,),
    ),
    Alias(
        name="vllm:request_success_total",
        source="disagg_requests_total",
        help="Requests ended, by why.",
        roles=(BALANCER,),
        keep={"finished_reason": "outcome"},
    ),
    Alias(
        name="vllm:admission_rejections_total",
        source="disagg_admission_rejections_total",
        help="Requests refused at the door.",
        roles=(BALANCER,),
        keep={"reason": "reason"},
    ),
    Alias(
        name="vllm:nixl_xfer_time_seconds",
        source="disagg_handoff_duration_seconds",
        help="Ticket to verified state.",
        roles=(DECODE,),
    ),
    Alias(
        name="vllm:nixl_bytes_transferred",
        source="disagg_handoff_bytes",
        help="Bytes of a hand-off.",
        roles=(DECODE,),
    ),
    Alias(
        name="vllm:nixl_num_failed_transfers_total",
        source="disagg_handoff_total",
        help="Hand-offs that decode could not read.",
        roles=(DECODE,),
        where={"outcome": "!ok"},
    ),
    Alias(
        name="vllm:mooncake_store_operation_time_seconds",
        source="disagg_kv_op_duration_seconds",
        help="Operations on the store.",
        roles=MEMBERS,
        keep={"operation": "op"},
    ),
    Alias(
        name="vllm:mooncake_store_operation_total",
        source="disagg_kv_op_duration_seconds",
        help="Operations on the store.",
        roles=MEMBERS,
        keep={"operation": "op"},
    ),
    Alias(
        name="vllm:mooncake_store_operation_bytes_total",
        source="disagg_kv_read_bytes_total",
        help="Bytes read from the store.",
        roles=MEMBERS,
    ),
)
