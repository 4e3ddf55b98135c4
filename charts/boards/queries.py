"""Words of queries that boards share. `{SCOPE}` in a query is what the variables choose.

Quantiles are taken of summed buckets, never averaged. A query of events that may never have
happened ends in `or vector(0)`, so that an empty panel always means that something is missing.
"""

from __future__ import annotations

NONE = " or vector(0)"
RATE = "[$__rate_interval]"


def rate(metric: str, *labels: str, by: str = "", where: str = "") -> str:
    """Rate of a counter, summed `by` labels."""
    selector = ",".join(("SCOPE", *labels, *((where,) if where else ())))
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{selector}}}{RATE}))"


def shared(query: str, *, by: str = "") -> str:
    """What each of several janitors tells of the one store of a release: once, not their sum."""
    labels = f", {by}" if by else ""
    inner = f"max by (namespace, release{labels}) ({query})"
    return f"sum{f' by ({by})' if by else ''} ({inner})"


def quantile(share: float, metric: str, by: str = "", where: str = "") -> str:
    """Quantile of a histogram over all processes."""
    selector = "SCOPE" + (f",{where}" if where else "")
    labels = f"le, {by}" if by else "le"
    buckets = f"sum by ({labels}) (rate({metric}_bucket{{{selector}}}{RATE}))"
    return f"histogram_quantile({share}, {buckets})"


def quantiles(metric: str, where: str = "") -> dict[str, str]:
    """Median, p90 and p99."""
    return {
        name: quantile(share, metric, where=where)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    }


MODEL = 'gen_ai_request_model=~"$model_name",tier=~"$tier"'
TTFT = "gen_ai_server_time_to_first_token_seconds"
TPOT = "gen_ai_server_time_per_output_token_seconds"
E2E = "gen_ai_server_request_duration_seconds"
PHASE = "disagg_phase_duration_seconds"
TIER = 'tier=~"$tier"'
NAMED = 'model_name=~"$model_name"'
# What callers are to blame for; the recording rules of errors leave out the same.
CALLERS_OWN = (
    *("BAD_REQUEST", "BAD_SAMPLING", "UNSUPPORTED_PARAMETER", "PROMPT_TOO_LONG"),
    *("CONSTRAINT_REJECTED", "UNKNOWN_MODEL", "NOT_AUTHENTICATED", "NOT_ALLOWED"),
    *("RATE_LIMITED", "CALLER_LEFT", "DUPLICATE_REQUEST"),
)
FAULTS = f'outcome="failed",reason!~"{"|".join(CALLERS_OWN)}"'
SLO = "disagg_slo_requests_total"
