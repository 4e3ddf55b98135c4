"""Boards of what stands below and beside: the store, and all that fails."""

from __future__ import annotations

from charts.boards.queries import NONE, RATE, quantile, rate, shared
from charts.dashboards import Board, Panel

STORE = Board(
    uid="disagg-kvstore",
    title="disagg / KV store",
    text="What is found, moved, held and verified in the shared store.",
    rows={
        "Hits": (
            Panel(
                title="Prompt tokens that need no computing",
                unit="percentunit",
                most=1.0,
                queries={
                    "hit rate": rate("disagg_prompt_tokens_total", where='source="store_hit"')
                    + f" / {rate('disagg_prompt_tokens_total')}"
                },
            ),
            Panel(
                title="Blocks looked up",
                text="Partial: stored, but nothing to resume from behind them.",
                unit="ops",
                is_stacked=True,
                queries={"{{result}}": rate("disagg_kv_lookup_blocks_total", by="result")},
            ),
            Panel(
                title="Stored prefixes given up",
                unit="ops",
                queries={"{{cause}}": rate("disagg_prefix_fallback_total", by="cause")},
            ),
        ),
        "Bytes": (
            Panel(
                title="Written",
                unit="Bps",
                is_stacked=True,
                queries={"{{component}}": rate("disagg_kv_written_bytes_total", by="component")},
            ),
            Panel(
                title="Read",
                unit="Bps",
                is_stacked=True,
                queries={"{{component}}": rate("disagg_kv_read_bytes_total", by="component")},
            ),
            Panel(
                title="Memory of the server",
                unit="bytes",
                queries={
                    "used": "max by (shard) (disagg_kv_store_used_bytes{SCOPE})",
                    "limit": "max by (shard) (disagg_kv_store_limit_bytes{SCOPE})",
                    "hand-offs": shared("disagg_kv_handoff_bytes{SCOPE}"),
                },
            ),
            Panel(
                title="Operations, p99",
                unit="s",
                has_exemplars=True,
                queries={"{{op}}": quantile(0.99, "disagg_kv_op_duration_seconds", "op")},
            ),
        ),
        "Leases": (
            Panel(
                title="Hand-offs held, requests running",
                queries={
                    "held": shared("disagg_kv_leases{SCOPE}"),
                    "running": 'sum(disagg_requests_running{SCOPE,role="balancer"})',
                },
            ),
            Panel(
                title="Reaped by the janitor",
                text="Several janitors share the work.",
                unit="ops",
                queries={"reaped": rate("disagg_kv_lease_expired_total")},
            ),
            Panel(
                title="Rounds of the janitor",
                text="Other than ok: it could not look, and why.",
                unit="ops",
                is_stacked=True,
                queries={"{{outcome}}": rate("disagg_kv_janitor_rounds_total", by="outcome")},
            ),
            Panel(
                title="Keys that the server dropped",
                unit="ops",
                queries={
                    "{{cause}}": shared(
                        f"rate(disagg_kv_evictions_total{{SCOPE}}{RATE})", by="cause"
                    )
                },
            ),
            Panel(
                title="Lost before they were read",
                unit="ops",
                queries={"{{component}}": rate("disagg_kv_early_evictions_total", by="component")},
            ),
        ),
        "Verification": (
            Panel(
                title="Segments read",
                unit="ops",
                is_stacked=True,
                queries={"{{outcome}}": rate("disagg_kv_read_segments_total", by="outcome")},
            ),
            Panel(
                title="Segments written",
                text="Present: the same bytes were there. Conflict: other bytes were.",
                unit="ops",
                is_stacked=True,
                queries={"{{outcome}}": rate("disagg_kv_written_segments_total", by="outcome")},
            ),
            Panel(
                title="Failed checks",
                unit="ops",
                queries={
                    "{{component}}": rate("disagg_kv_checksum_failures_total", by="component")
                },
            ),
            Panel(
                title="The store answers",
                kind="stat",
                queries={"up": "max(disagg_kv_store_up{SCOPE})"},
            ),
        ),
    },
)

FAILURES = Board(
    uid="disagg-failures",
    title="disagg / Failures",
    text="What went wrong, where, and what was done about it.",
    rows={
        "Requests": (
            Panel(
                title="Failed requests by reason",
                unit="reqps",
                is_stacked=True,
                queries={
                    "{{reason}}": rate(
                        "disagg_requests_total", by="reason", where='outcome="failed"'
                    )
                },
            ),
            Panel(
                title="Sent to another member",
                unit="ops",
                queries={
                    "{{stage}} {{reason}}": rate("disagg_redispatch_total", by="stage, reason")
                },
            ),
            Panel(
                title="Cancelled",
                unit="ops",
                queries={
                    "{{stage}} {{origin}}": rate("disagg_cancellations_total", by="stage, origin")
                },
            ),
            Panel(
                title="Refused at the door",
                unit="reqps",
                queries={"{{reason}}": rate("disagg_admission_rejections_total", by="reason")},
            ),
            Panel(
                title="Refused before they were calls",
                text="Connections of the HTTP face that were dropped, and its calls that were "
                "too many or had no key.",
                unit="ops",
                queries={"{{cause}}": rate("disagg_http_refused_total", by="cause")},
            ),
            Panel(
                title="Tokens dropped (twice, or of an old attempt)",
                unit="ops",
                queries={"tokens": rate("disagg_dropped_tokens_total")},
            ),
            Panel(
                title="Exceptions nobody translated",
                text="Each is a bug, with an incident number in the log of the process.",
                unit="ops",
                queries={"{{method}}": rate("disagg_internal_errors_total", by="method")},
            ),
        ),
        "Members": (
            Panel(
                title="Members by state",
                is_stacked=True,
                queries={
                    "{{role}} {{state}}": "max by (role, state) (disagg_members{SCOPE})",
                },
            ),
            Panel(
                title="Groups that lack ranks",
                queries={
                    "{{role}}": 'max by (role) (disagg_groups{SCOPE,state="incomplete"})',
                },
            ),
            Panel(
                title="Processes that take work",
                queries={
                    "ready {{role}}": "sum by (role) (disagg_worker_ready{SCOPE})",
                    "drain {{role}}": "sum by (role) (disagg_draining{SCOPE})",
                },
            ),
            Panel(
                title="Changes of readiness",
                unit="ops",
                queries={
                    "{{to}} {{cause}}": rate("disagg_readiness_transitions_total", by="to, cause")
                },
            ),
            Panel(
                title="Names of balancers that could not be looked up",
                text="Members go on with the addresses they had.",
                unit="ops",
                queries={
                    "{{outcome}}": rate(
                        "disagg_receiver_lookups_total", by="outcome", where='outcome!="ok"'
                    )
                },
            ),
        ),
        "Processes": (
            Panel(
                title="Event loop delay, p99",
                unit="s",
                queries={"{{role}}": quantile(0.99, "disagg_event_loop_delay_seconds", "role")},
            ),
            Panel(
                title="Calls that did not end well",
                unit="ops",
                queries={
                    "{{rpc_method}} {{rpc_response_status_code}}": rate(
                        "rpc_server_call_duration_seconds_count",
                        by="rpc_method, rpc_response_status_code",
                        where='rpc_response_status_code!="OK"',
                    )
                    + NONE
                },
            ),
            Panel(
                title="Scrapes without an answer",
                unit="ops",
                queries={"{{cause}}": rate("disagg_scrapes_dropped_total", by="cause")},
            ),
            Panel(
                title="Days until the first certificate ends",
                text="0 where there is none: TLS is off.",
                kind="stat",
                queries={
                    "days": "(min(disagg_tls_cert_expiry_timestamp_seconds{SCOPE}) - time())"
                    f" / 86400{NONE}"
                },
            ),
            Panel(
                title="Secrets that could not be read again",
                kind="stat",
                queries={
                    "files": "count(disagg_secret_reload_success{SCOPE} == 0)" + NONE,
                },
            ),
        ),
        "Builds": (
            Panel(
                title="What runs",
                kind="table",
                width=24,
                queries={
                    "": "count by (role, version, revision, fingerprint) (disagg_build_info{SCOPE})"
                },
            ),
        ),
    },
)
