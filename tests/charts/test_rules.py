"""Recording and alert rules: each alert fires when it should and is silent when it should be.

The real `promtool` evaluates the files of the chart over series written for each case. It comes
with Debian's package `prometheus`, which is no requirement of the project.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.boards.queries import CALLERS_OWN
from charts.golden import CHART
from runtime import errors
from runtime.metrics.table import TABLE
from tests.fakes.processes import ROOT

pytestmark = pytest.mark.medium

RULES = sorted((CHART / "files" / "rules").glob("*.yaml"))
WHERE = 'namespace="llm",release="demo"'


def promtool() -> str:
    """The program, or a skip that says what is missing."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("NO PROMTOOL, RULES ARE NOT TESTED (Debian: apt-get install prometheus)")
    return found


def rules(kind: str) -> dict[str, dict[str, Any]]:
    """Rules by name; `kind` is alert or record."""
    return {
        rule[kind]: rule
        for path in RULES
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if kind in rule
    }


def test_the_error_budget_leaves_out_what_callers_are_to_blame_for_and_nothing_else() -> None:
    blamed = (
        *(errors.InvalidRequest, errors.Denied, errors.Forbidden, errors.AlreadyRunning),
        errors.CallerLeft,
    )
    wanted = {reason.value for known in blamed for reason in known.reasons}
    # Classes of mixed blame: of these reasons the caller's.
    wanted |= {"UNKNOWN_MODEL", "CONSTRAINT_REJECTED", "RATE_LIMITED"}
    assert set(CALLERS_OWN) == wanted
    shares = [name for name in rules("record") if name.startswith("disagg:request_errors:")]
    assert len(shares) == 7
    for name in shares:
        found = re.findall(r'reason!~"([^"]*)"', rules("record")[name]["expr"])
        assert set("|".join(found).split("|")) == wanted, name


@dataclass(frozen=True, kw_only=True)
class Case:
    """Series as promtool writes them, one value a minute, and whether the alert fires at `at`."""

    alert: str
    series: dict[str, str]
    at: str
    fires: bool


def requests(ok: str, failed: str, reason: str = "PEER_GONE") -> dict[str, str]:
    name = f'disagg_requests_total{{{WHERE},model_name="m",'
    return {
        f'{name}endpoint="chat",outcome="stop",reason=""}}': ok,
        f'{name}endpoint="chat",outcome="failed",reason="{reason}"}}': failed,
    }


def judged(good: str, **verdicts: str) -> dict[str, str]:
    name = f'disagg_slo_requests_total{{{WHERE},tier="lt16k",verdict='
    return {f'{name}"{key}"}}': value for key, value in {"good": good, **verdicts}.items()}


def one(name: str, values: str, labels: str = "") -> dict[str, str]:
    return {f"{name}{{{WHERE}{',' if labels else ''}{labels}}}": values}


def waiting(values: str, tier: str = "lt16k") -> dict[str, str]:
    return one("disagg_requests_waiting", values, f'role="balancer",tier="{tier}"')


def placed(values: str) -> dict[str, str]:
    return one("disagg_route_decisions_total", values, 'tier="lt16k",outcome="pair"')


def members(role: str, ready: str) -> dict[str, str]:
    return one("disagg_members", ready, f'role="{role}",state="ready"')


def delays(slow: str, total: str) -> dict[str, str]:
    name, labels = "disagg_event_loop_delay_seconds_bucket", 'role="decode"'
    return {
        **one(name, slow, f'{labels},le="0.01"'),
        **one(name, total, f'{labels},le="2"'),
        **one(name, total, f'{labels},le="+Inf"'),
    }


def handoffs(ok: str, bad: str) -> dict[str, str]:
    return {
        **one("disagg_handoff_total", ok, 'outcome="ok"'),
        **one("disagg_handoff_total", bad, 'outcome="evicted"'),
    }


def store(used: str, limit: str) -> dict[str, str]:
    return {
        **one("disagg_kv_store_used_bytes", used, 'shard="all"'),
        **one("disagg_kv_store_limit_bytes", limit, 'shard="all"'),
    }


def leases(held: str, running: str) -> dict[str, str]:
    return {
        **one("disagg_kv_leases", held),
        **one("disagg_requests_running", running, 'role="balancer",tier="lt16k"'),
    }


# A window that is not yet full judges by what there is, so no case has to last for days.
# In the tests of promtool time begins in 1970.
DAY = 86400
FIRES: dict[str, tuple[dict[str, str], str]] = {
    "DisaggErrorBudgetBurnFast": (requests("0+97x20", "0+3x20"), "15m"),
    "DisaggErrorBudgetBurnMedium": (requests("0+990x20", "0+10x20"), "15m"),
    "DisaggErrorBudgetBurnSlow": (requests("0+995x30", "0+5x30"), "25m"),
    "DisaggTTFTHigh": (judged("0+90x20", late_first_token="0+10x20"), "15m"),
    "DisaggTPOTHigh": (judged("0+90x20", slow_tokens="0+10x20"), "15m"),
    "DisaggQueueGrowing": (waiting("0+5x20"), "17m"),
    "DisaggTierStarved": ({**waiting("3x20"), **placed("7x20")}, "15m"),
    "DisaggNoReadyPrefill": (members("prefill", "1 1 0x10"), "6m"),
    "DisaggNoReadyDecode": (members("decode", "2 0x10"), "6m"),
    "DisaggGroupIncomplete": (
        one("disagg_groups", "1x20", 'role="decode",state="incomplete"'),
        "12m",
    ),
    "DisaggKvStoreDown": (one("disagg_kv_store_up", "1 1 0x5"), "4m"),
    "DisaggHandoffFailures": (handoffs("0+95x20", "0+5x20"), "15m"),
    "DisaggKvCorruption": (
        one("disagg_kv_checksum_failures_total", "0x9 1x9", 'component="kv"'),
        "12m",
    ),
    "DisaggKvStoreNearFull": (store("90x20", "100x20"), "15m"),
    "DisaggLeaseLeak": (leases("5x20", "2x20"), "15m"),
    "DisaggEventLoopStalled": (delays("0+90x20", "0+100x20"), "15m"),
    "DisaggCertExpiresSoon": (
        one("disagg_tls_cert_expiry_timestamp_seconds", f"{10 * DAY}x20", 'role="decode"'),
        "15m",
    ),
    "DisaggTargetDown": (
        {'up{job="disagg-decode",release="demo",instance="a:9090"}': "1 1 0x10"},
        "9m",
    ),
}
SILENT: dict[str, tuple[dict[str, str], str]] = {
    # What callers are to blame for is no error of ours.
    "DisaggErrorBudgetBurnFast": (requests("0+97x20", "0+3x20", "PROMPT_TOO_LONG"), "15m"),
    # Over by now: the short window is clean.
    "DisaggErrorBudgetBurnMedium": (requests("0+990x60", "0+10x10 100x50"), "55m"),
    "DisaggErrorBudgetBurnSlow": (requests("0+9999x30", "0+1x30"), "25m"),
    "DisaggTTFTHigh": (judged("0+99x20", late_first_token="0+1x20"), "15m"),
    "DisaggTPOTHigh": (judged("0+99x20", slow_tokens="0+1x20"), "15m"),
    "DisaggQueueGrowing": (waiting("100-2x20"), "17m"),
    "DisaggTierStarved": ({**waiting("3x20"), **placed("0+1x20")}, "15m"),
    "DisaggNoReadyPrefill": (members("prefill", "0 1x10"), "6m"),
    "DisaggNoReadyDecode": (
        {
            **one("disagg_members", "0x10", 'role="decode",state="ready",instance="a"'),
            **one("disagg_members", "2x10", 'role="decode",state="ready",instance="b"'),
        },
        "6m",
    ),
    "DisaggGroupIncomplete": (
        one("disagg_groups", "1x5 0x20", 'role="decode",state="incomplete"'),
        "12m",
    ),
    "DisaggKvStoreDown": (one("disagg_kv_store_up", "1 0 1x5"), "4m"),
    "DisaggHandoffFailures": (handoffs("0+100x20", "0+1x20"), "15m"),
    # An old failure is none any more.
    "DisaggKvCorruption": (
        one("disagg_kv_checksum_failures_total", "0 1x30", 'component="kv"'),
        "20m",
    ),
    "DisaggKvStoreNearFull": (store("90x20", "0x20"), "15m"),  # no limit
    # Two janitors of one store tell the same hand-offs.
    "DisaggLeaseLeak": (
        {
            **one("disagg_kv_leases", "5x20", 'instance="a"'),
            **one("disagg_kv_leases", "5x20", 'instance="b"'),
            **one("disagg_requests_running", "9x20", 'role="balancer",tier="lt16k"'),
        },
        "15m",
    ),
    "DisaggEventLoopStalled": (delays("0+995x20", "0+1000x20"), "15m"),
    "DisaggCertExpiresSoon": (
        one("disagg_tls_cert_expiry_timestamp_seconds", f"{60 * DAY}x20", 'role="decode"'),
        "15m",
    ),
    "DisaggTargetDown": ({'up{job="node",instance="a:9100"}': "0x10"}, "9m"),
}


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    assert set(FIRES) == set(SILENT) == set(rules("alert"))


def test_alerts_fire_and_are_silent(tmp_path: Path) -> None:
    program = promtool()
    cases = [
        Case(alert=alert, series=series, at=at, fires=fires)
        for table, fires in ((FIRES, True), (SILENT, False))
        for alert, (series, at) in table.items()
    ]
    tests = [
        {
            "name": f"{case.alert} {'fires' if case.fires else 'is silent'}",
            "interval": "1m",
            "input_series": [
                {"series": series, "values": values} for series, values in case.series.items()
            ],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{case.alert}",alertstate="firing"}})',
                    "eval_time": case.at,
                    "exp_samples": [{"labels": "{}", "value": 1}] if case.fires else [],
                }
            ],
        }
        for case in cases
    ]
    path = tmp_path / "cases.yaml"
    files = [str(path) for path in RULES]
    document = {"rule_files": files, "evaluation_interval": "1m", "tests": tests}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    done = subprocess.run(
        [program, "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_burst_between_two_scrapes_is_seen(tmp_path: Path) -> None:
    """The rows of failures are there at zero; without them the first 100 would be no increase."""
    program = promtool()
    name = "disagg:request_errors:ratio_rate5m"
    test = {
        "interval": "15s",
        "input_series": [
            {"series": series, "values": values}
            for series, values in requests("0x60", "0x10 100x50", "NO_DECODE").items()
        ],
        "promql_expr_test": [
            {
                "expr": name,
                "eval_time": "5m",
                "exp_samples": [
                    {"labels": f'{name}{{namespace="llm",release="demo"}}', "value": 1}
                ],
            }
        ],
    }
    path = tmp_path / "burst.yaml"
    files = [str(path) for path in RULES]
    document = {"rule_files": files, "evaluation_interval": "1m", "tests": [test]}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    done = subprocess.run(
        [program, "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_words_of_an_alert_are_filled_in(tmp_path: Path) -> None:
    program = promtool()
    alert = rules("alert")["DisaggKvStoreNearFull"]
    expected = {
        "exp_labels": {"severity": "warning", "role": "store", "namespace": "llm"}
        | {"release": "demo", "shard": "all"},
        "exp_annotations": {
            "summary": "demo: the KV store is 90% full",
            "description": alert["annotations"]["description"],
            "runbook_url": alert["annotations"]["runbook_url"],
        },
    }
    series, at = FIRES["DisaggKvStoreNearFull"]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": at, "alertname": "DisaggKvStoreNearFull", "exp_alerts": [expected]}
        ],
    }
    path = tmp_path / "words.yaml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(path) for path in RULES], "tests": [test]}),
        encoding="utf-8",
    )
    done = subprocess.run(
        [program, "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_are_checked() -> None:
    done = subprocess.run(
        [promtool(), "check", "rules", *map(str, RULES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_say_who_how_bad_and_where_to_read() -> None:
    runbook = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    sections = {line.removeprefix("## ") for line in runbook.splitlines() if line[:3] == "## "}
    for name, alert in rules("alert").items():
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}, name
        assert {"summary", "description"} <= set(alert["annotations"]), name
        assert alert["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}"
        assert name in sections, f"docs/runbooks.md has no section {name}"
    assert sections - set(rules("alert")) == set()


def test_rules_use_metrics_that_exist() -> None:
    known = {row.name for row in TABLE} | set(rules("record")) | {"up"}
    known |= {f"{row.name}_bucket" for row in TABLE if row.kind == "histogram"}
    for kind in ("alert", "record"):
        for name, rule in rules(kind).items():
            used = set(re.findall(r"\b(?:disagg|gen_ai|rpc)[a-z_]*:?[a-z_0-9:]+", rule["expr"]))
            assert used <= known, name


@pytest.mark.parametrize("name", sorted(rules("record")))
def test_recorded_names_say_metric_and_operation(name: str) -> None:
    assert re.fullmatch(r"disagg:[a-z_]+:[a-z0-9_]+", name)
