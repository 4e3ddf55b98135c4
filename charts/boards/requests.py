"""Boards of requests: what callers see, and how prompts are placed."""

from __future__ import annotations

from charts.boards.queries import (
    E2E,
    FAULTS,
    MODEL,
    NAMED,
    NONE,
    PHASE,
    SLO,
    TIER,
    TPOT,
    TTFT,
    quantile,
    quantiles,
    rate,
)
from charts.dashboards import Board, Panel

OVERVIEW = Board(
    uid="disagg-overview",
    title="disagg / Overview",
    text="Does it keep what it promises? SLO, goodput, latencies, errors.",
    variables=("model_name", "tier"),
    rows={
        "Promise": (
            Panel(
                title="Error budget left (3 d of 30 d)",
                text="1 is all of it; the objective is that 99.9 % do not fail.",
                kind="stat",
                unit="percentunit",
                width=6,
                height=5,
                queries={
                    "left": "1 - (sum(increase(disagg_requests_total{SCOPE,"
                    f"{FAULTS}"
                    "}[3d])) / clamp_min(sum(increase(disagg_requests_total{SCOPE}[3d])), 1)"
                    " / 0.001 / 10)"
                },
            ),
            Panel(
                title="Goodput",
                text="Requests a second that ended well within their targets.",
                kind="stat",
                unit="reqps",
                width=6,
                height=5,
                queries={"good": rate(SLO, TIER, where='verdict="good"') + NONE},
            ),
            Panel(
                title="Output",
                kind="stat",
                unit="short",
                text="Tokens a second that were handed out.",
                width=6,
                height=5,
                queries={"tokens/s": rate("disagg_generated_tokens_total", NAMED)},
            ),
            Panel(
                title="Ready members",
                kind="stat",
                width=6,
                height=5,
                queries={
                    "{{role}}": 'max by (role) (disagg_members{SCOPE,state="ready"})',
                },
            ),
        ),
        "Requests": (
            Panel(
                title="Requests by end",
                unit="reqps",
                is_stacked=True,
                queries={
                    "{{outcome}}": rate("disagg_requests_total", NAMED, by="outcome"),
                },
            ),
            Panel(
                title="Kept their targets, by class",
                text="Target to the first token and per output token: of the settings, or of the "
                "request.",
                unit="reqps",
                is_stacked=True,
                queries={"{{verdict}}": rate(SLO, TIER, by="verdict")},
            ),
            Panel(
                title="Running and waiting",
                queries={
                    "running {{role}}": "sum by (role) (disagg_requests_running{SCOPE})",
                    "waiting {{role}}": "sum by (role) (disagg_requests_waiting{SCOPE})",
                },
            ),
            Panel(
                title="Failed share",
                unit="percentunit",
                queries={
                    "failed": f"{rate('disagg_requests_total', FAULTS)} / "
                    f"{rate('disagg_requests_total')}"
                },
            ),
        ),
        "Latency": (
            Panel(
                title="Time to first token",
                unit="s",
                has_exemplars=True,
                queries=quantiles(TTFT, MODEL),
            ),
            Panel(
                title="Time per output token",
                unit="s",
                has_exemplars=True,
                queries=quantiles(TPOT, MODEL),
            ),
            Panel(
                title="Whole request",
                unit="s",
                has_exemplars=True,
                queries=quantiles(E2E, MODEL),
            ),
            Panel(
                title="Gaps between tokens",
                unit="s",
                has_exemplars=True,
                queries={
                    "p50": quantile(0.5, "disagg_inter_token_latency_seconds", where=NAMED),
                    "p99": quantile(0.99, "disagg_inter_token_latency_seconds", where=NAMED),
                    "longest of a request, p99": quantile(
                        0.99, "disagg_max_token_gap_seconds", where=NAMED
                    ),
                },
            ),
        ),
        "Traces": (
            Panel(
                title="Service graph",
                text="Who calls whom, made by Tempo from the spans.",
                kind="nodeGraph",
                width=24,
                queries={},
            ),
        ),
    },
)

PREFILL = Board(
    uid="disagg-prefill",
    title="disagg / Prefill classes",
    text="Length classes of prompts: who has which engines, and what waits.",
    variables=("tier",),
    rows={
        "Classes": (
            Panel(
                title="Engines of a class",
                text="A class at 0 borrows: its prompts go to engines of other classes.",
                is_stacked=True,
                queries={"{{tier}}": f"max by (tier) (disagg_tier_engines{{SCOPE,{TIER}}})"},
            ),
            Panel(
                title="Backlog",
                text="Prompt tokens whose prefill is not over.",
                is_stacked=True,
                queries={"{{tier}}": f"sum by (tier) (disagg_tier_backlog_tokens{{SCOPE,{TIER}}})"},
            ),
            Panel(
                title="Handed out in the last round",
                unit="short",
                is_stacked=True,
                queries={"{{tier}}": f"sum by (tier) (disagg_tier_quota_tokens{{SCOPE,{TIER}}})"},
            ),
            Panel(
                title="Waiting for admission",
                is_stacked=True,
                queries={
                    "{{tier}}": "sum by (tier) (disagg_requests_waiting{SCOPE,"
                    f'role="balancer",{TIER}'
                    "})"
                },
            ),
            Panel(
                title="Time to first token, p99 by class",
                unit="s",
                has_exemplars=True,
                queries={"{{tier}}": quantile(0.99, TTFT, "tier", TIER)},
            ),
            Panel(
                title="Placements",
                unit="ops",
                queries={
                    "{{tier}} {{outcome}}": rate(
                        "disagg_route_decisions_total", TIER, by="tier, outcome"
                    )
                },
            ),
            Panel(
                title="Members to choose among, median",
                queries={"{{tier}}": quantile(0.5, "disagg_route_candidates", "tier", TIER)},
            ),
            Panel(
                title="Refused at the door",
                unit="reqps",
                queries={"{{reason}}": rate("disagg_admission_rejections_total", by="reason")},
            ),
        ),
        "Engines": (
            Panel(
                title="Prompt tokens by where their KV came from",
                unit="short",
                is_stacked=True,
                queries={"{{source}}": rate("disagg_prompt_tokens_total", by="source")},
            ),
            Panel(
                title="Waiting for an engine, computing",
                unit="s",
                has_exemplars=True,
                queries={
                    "queue p99": quantile(0.99, PHASE, where='phase="prefill_queue"'),
                    "compute p50": quantile(0.5, PHASE, where='phase="prefill"'),
                    "compute p99": quantile(0.99, PHASE, where='phase="prefill"'),
                },
            ),
            Panel(
                title="Prompts on engines",
                queries={
                    "running {{pod}} {{instance}}": "sum by (pod, instance) "
                    '(disagg_requests_running{SCOPE,role="prefill"})',
                    "waiting {{pod}} {{instance}}": "sum by (pod, instance) "
                    '(disagg_requests_waiting{SCOPE,role="prefill"})',
                },
            ),
            Panel(
                title="Age of the last progress",
                unit="s",
                queries={
                    "{{pod}} {{instance}}": "max by (pod, instance) "
                    '(disagg_progress_age_seconds{SCOPE,role="prefill"})'
                },
            ),
        ),
    },
)
