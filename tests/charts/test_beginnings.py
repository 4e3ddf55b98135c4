"""Every counter that a rule or panel takes the rate of is there, at zero, when a process starts.

A series that appears with its first event has no rate for it: an outage that fits between two
scrapes would be seen by nobody.
"""

from __future__ import annotations

import re

import pytest

from balancer.journey.failures import remedy_for
from charts.dashboards import DIRECTORY
from charts.golden import CHART
from runtime import errors
from runtime.metrics import TABLE, Metric, Metrics

FILES = (*(CHART / "files" / "rules").glob("*.yaml"), *DIRECTORY.glob("*.json"))
RATED = set(
    re.findall(
        r"\b(?:rate|increase)\(\s*(\w+_total)\b",
        "\n".join(path.read_text(encoding="utf-8") for path in FILES),
    )
)
ROWS = [row for row in TABLE if row.name in RATED]
# What only the settings of a process know; see `Metrics.expect`.
BY_SETTINGS = {"tier": ("lt16k", "ge16k"), "policy": ("p2c",)}


def test_rules_and_panels_have_rates() -> None:
    assert len(RATED) > 20
    assert {row.name for row in ROWS} == RATED


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_has_a_rate_begins_at_zero(row: Metric) -> None:
    # Events are off unless they are asked for; their types are those of the stream.
    for role in row.roles:
        metrics = Metrics(role=role, model="m")
        open_labels = {label: BY_SETTINGS[label] for label in row.labels if label in BY_SETTINGS}
        if open_labels:
            metrics.expect(row.name, **open_labels)
        page = metrics.exposition()[0].decode()
        assert re.search(rf"^{row.name}(?:\{{[^}}]*\}})? 0\.0$", page, re.MULTILINE), role


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        (
            "disagg_requests_total",
            'endpoint="chat",model_name="m",outcome="failed",reason="NO_DECODE"',
        ),
        ("disagg_redispatch_total", 'reason="peer_gone",stage="decode"'),
    ],
)
def test_failures_have_their_rows_before_the_first(name: str, labels: str) -> None:
    page = Metrics(role="balancer", model="m").snapshot()
    wanted = ",".join(label.replace('"', "") for label in labels.split(","))
    assert page[f"{name}{{{wanted}}}"] == 0


def test_every_cause_of_a_retry_has_rows() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.DisaggError)
        and kind is not errors.DisaggError
    ]
    made = [kind("x", reason=reason) for kind in kinds for reason in kind.reasons]
    causes = {remedy.cause for error in made if (remedy := remedy_for(error)) is not None}
    [row] = [row for row in ROWS if row.name == "disagg_redispatch_total"]
    assert causes <= set(row.values_of("reason"))
    assert len(causes) > 8
    [row] = [row for row in ROWS if row.name == "disagg_requests_total"]
    assert set(row.values_of("reason")) - {""} <= set(errors.Reason)
