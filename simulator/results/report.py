"""From samples to figures: the JSON of `disagg simulate`, and its table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.results.samples import Samples, quantiles
from simulator.results.slo import Slo

_SHORT_TOKENS = 16 * 1024


def report(samples: Samples, slo: Slo, class_names: Sequence[str]) -> dict[str, Any]:
    """Figures of one policy; seconds and bytes, shares in [0, 1], None for what did not occur."""
    rows = samples.rows
    done = [row for row in rows if not math.isnan(row.finished_at)]
    good = sum(slo.is_met(row.prompt_tokens, row.ttft_s, row.tpot_s) for row in done)
    short = [row.ttft_s for row in rows if row.prompt_tokens < _SHORT_TOKENS]
    second = [row.second_at - row.first_at for row in done if row.output_tokens > 1]
    gaps = [*samples.gaps, *((gap, 1) for gap in second)]
    traffic = samples.traffic
    # After the last arrival the cluster only empties; nobody balances that.
    looks = [look for look in samples.looks if look.at <= rows[-1].arrived_at] or samples.looks
    found = {
        "ttft": quantiles([row.ttft_s for row in rows]),
        "tpot": quantiles([row.tpot_s for row in done]),
        "itl": quantiles([gap for gap, _ in gaps], [tokens for _, tokens in gaps]),
        "second_token": quantiles([row.second_at - row.arrived_at for row in done]),
        "goodput": good / len(rows),
        "offered": len(rows),
        "completed": len(done),
        "rejected": sum(bool(row.refused) for row in rows),
        "imbalance": {
            "requests": quantiles([look.imbalance[0] for look in looks])["mean"],
            "kv": quantiles([look.imbalance[1] for look in looks])["mean"],
        },
        "ttft_under_16k": quantiles(short),
        "utilisation": {
            "prefill": samples.prefill_fill,
            "prefill_busy": samples.prefill_busy,
            "decode_busy": samples.decode_busy,
            "store": samples.store_busy,
        },
        "store": {
            "prefix_bytes": traffic.prefix_bytes,
            "handoff_bytes": traffic.handoff_bytes,
            "written_bytes": traffic.written_bytes,
            "evicted_blocks": traffic.evicted_blocks,
            "hit_share": traffic.cached_tokens / max(1, traffic.prompt_tokens),
        },
        "classes": {
            name: _class_figures(samples, slo, number)
            for number, name in enumerate(class_names)
            if any(row.length_class == number for row in rows)
        },
        "refused_why": _reasons(samples),
        "decisions": samples.decisions,
        "held": samples.held,
        "ended_s": samples.ended_at,
    }
    cleaned: dict[str, Any] = _clean(found)
    return cleaned


def table_rows(policies: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Header and one row a policy, for the terminal and the docs."""
    header = (
        "policy",
        "goodput",
        "TTFT mean",
        "p50",
        "p90",
        "p99",
        "p99 <16K",
        "TPOT p50",
        "p99",
        "ITL p99",
        "imbalance req",
        "kv",
        "done",
        "refused",
    )
    rows: list[tuple[str, ...]] = [header]
    for name, found in policies.items():
        ttft, tpot = found["ttft"], found["tpot"]
        rows.append(
            (
                name,
                f"{found['goodput']:.1%}",
                *(_seconds(ttft[key]) for key in ("mean", "p50", "p90", "p99")),
                _seconds(found["ttft_under_16k"]["p99"]),
                _seconds(tpot["p50"]),
                _seconds(tpot["p99"]),
                _seconds(found["itl"]["p99"]),
                _ratio(found["imbalance"]["requests"]),
                _ratio(found["imbalance"]["kv"]),
                str(found["completed"]),
                str(found["rejected"]),
            )
        )
    return rows


def _class_figures(samples: Samples, slo: Slo, number: int) -> dict[str, Any]:
    rows = [row for row in samples.rows if row.length_class == number]
    good = sum(
        slo.is_met(row.prompt_tokens, row.ttft_s, row.tpot_s)
        for row in rows
        if not math.isnan(row.finished_at)
    )
    return {
        "offered": len(rows),
        "goodput": good / len(rows),
        "ttft": quantiles([row.ttft_s for row in rows]),
    }


def _reasons(samples: Samples) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in samples.rows:
        if row.refused:
            found[row.refused] = found.get(row.refused, 0) + 1
    return found


def _clean(value: Any) -> Any:
    """JSON knows no NaN; figures keep the digits that mean something."""
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1e3:.1f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:.0f} s"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
