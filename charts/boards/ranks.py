"""Boards of the way between ranks: decode, and the hand-off before it."""

from __future__ import annotations

from charts.boards.queries import PHASE, RATE, quantile, quantiles, rate
from charts.dashboards import Board, Panel

DECODE = Board(
    uid="disagg-decode",
    title="disagg / Decode ranks",
    text="Ranks that step together: a step is as slow as its slowest rank.",
    rows={
        "Load of ranks": (
            Panel(
                title="Requests by rank",
                kind="heatmap",
                text="A row of its own colour is a rank that has more than its share.",
                queries={
                    "{{dp_rank}}": "sum by (dp_rank) (disagg_decode_kv_tokens{SCOPE} * 0 "
                    "+ on (namespace, release, pod, instance) group_left () "
                    'disagg_requests_running{SCOPE,role="decode"})'
                },
            ),
            Panel(
                title="KV tokens by rank",
                kind="heatmap",
                queries={"{{dp_rank}}": "sum by (dp_rank) (disagg_decode_kv_tokens{SCOPE})"},
            ),
            Panel(
                title="Imbalance",
                text="Largest over mean; 1 is even.",
                queries={"{{axis}}": "max by (axis) (disagg_decode_imbalance_ratio{SCOPE})"},
            ),
            Panel(
                title="KV pool in use",
                unit="percentunit",
                most=1.0,
                queries={
                    "fullest rank": "max(disagg_decode_kv_tokens{SCOPE} "
                    "/ disagg_decode_kv_capacity_tokens{SCOPE})",
                    "all ranks": "sum(disagg_decode_kv_tokens{SCOPE}) "
                    "/ sum(disagg_decode_kv_capacity_tokens{SCOPE})",
                },
            ),
        ),
        "Steps": (
            Panel(
                title="Step time",
                unit="s",
                queries=quantiles("disagg_decode_step_seconds"),
            ),
            Panel(
                title="Sequences in a step",
                queries=quantiles("disagg_decode_batch_size"),
            ),
            Panel(
                title="Placeholder share",
                text="Steps in which a rank only served its peers.",
                unit="percentunit",
                most=1.0,
                queries={
                    "share": f"{rate('disagg_decode_placeholder_steps_total')} / "
                    f"({rate('disagg_decode_placeholder_steps_total')} + "
                    f"{rate('disagg_decode_steps_total')})"
                },
            ),
            Panel(
                title="Waiting for a slot, generating",
                unit="s",
                has_exemplars=True,
                queries={
                    "queue p99": quantile(0.99, PHASE, where='phase="decode_queue"'),
                    "generate p50": quantile(0.5, PHASE, where='phase="decode"'),
                    "generate p99": quantile(0.99, PHASE, where='phase="decode"'),
                },
            ),
            Panel(
                title="Age of the last progress",
                unit="s",
                queries={
                    "{{pod}} {{instance}}": "max by (pod, instance) "
                    '(disagg_progress_age_seconds{SCOPE,role="decode"})'
                },
            ),
            Panel(
                title="Messages of streams",
                unit="ops",
                queries={"{{role}}": rate("disagg_stream_messages_total", by="role")},
            ),
        ),
    },
)

HANDOFF = Board(
    uid="disagg-pd-pipeline",
    title="disagg / Hand-off waterfall",
    text="From the prompt to the last token: what each part of the way takes.",
    rows={
        "Waterfall": (
            Panel(
                title="Mean seconds of each part of a request",
                text="In the order of the way; a part is told by the process that does it.",
                kind="bargauge",
                unit="s",
                width=24,
                height=10,
                queries={
                    phase: f'sum(rate({PHASE}_sum{{SCOPE,phase="{phase}"}}{RATE})) / '
                    f'sum(rate({PHASE}_count{{SCOPE,phase="{phase}"}}{RATE}))'
                    for phase in (
                        *("text", "admit", "route", "prefix_load", "prefill_queue", "prefill"),
                        *("publish", "commit", "handoff_wait", "fetch", "decode_queue", "decode"),
                    )
                },
            ),
            Panel(
                title="Parts, p99",
                unit="s",
                has_exemplars=True,
                width=24,
                queries={"{{phase}}": quantile(0.99, PHASE, "phase")},
            ),
        ),
        "Hand-off": (
            Panel(
                title="Ticket to verified state",
                unit="s",
                has_exemplars=True,
                queries=quantiles("disagg_handoff_duration_seconds"),
            ),
            Panel(
                title="Bytes of a hand-off",
                unit="bytes",
                queries=quantiles("disagg_handoff_bytes"),
            ),
            Panel(
                title="Outcomes",
                unit="ops",
                is_stacked=True,
                queries={"{{outcome}}": rate("disagg_handoff_total", by="outcome")},
            ),
            Panel(
                title="Read before the ticket",
                text="Blocks that decode reads while the prompt still computes.",
                unit="ops",
                queries={
                    "blocks {{result}}": rate("disagg_prefetch_blocks_total", by="result"),
                    "hand-offs {{outcome}}": rate("disagg_prefetch_total", by="outcome"),
                },
            ),
        ),
        "Calls": (
            Panel(
                title="Calls of the balancer, p99",
                unit="s",
                has_exemplars=True,
                queries={
                    "{{rpc_method}}": quantile(
                        0.99, "rpc_client_call_duration_seconds", "rpc_method"
                    )
                },
            ),
            Panel(
                title="Calls served, p99",
                unit="s",
                has_exemplars=True,
                queries={
                    "{{rpc_method}}": quantile(
                        0.99, "rpc_server_call_duration_seconds", "rpc_method"
                    )
                },
            ),
        ),
    },
)
