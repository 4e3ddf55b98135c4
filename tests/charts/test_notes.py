"""What an installation tells: how to ask it something, what cannot run, what is not seen."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from charts.golden import CHART, render
from tests.charts.conftest import parse
from tests.charts.objects import one

pytestmark = pytest.mark.medium

Notes = Callable[[str], str]


@pytest.fixture(scope="module")
def notes(helm: Path, tmp_path_factory: pytest.TempPathFactory) -> Notes:
    """The notes for values; `helm template` shows none, so an object takes them along."""
    chart = tmp_path_factory.mktemp("notes") / "disagg"
    shutil.copytree(CHART, chart)
    shutil.copy(chart / "templates" / "NOTES.txt", chart / "notes.txt")
    (chart / "templates" / "notes.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\n"
        'data: {text: {{ tpl (.Files.Get "notes.txt") . | quote }}}\n',
        encoding="utf-8",
    )

    def text(values: str) -> str:
        objects = parse(render(helm, "--set", values, chart=chart))
        return str(one(objects, "ConfigMap", "notes")["data"]["text"])

    return text


def test_plain_notes_say_how_to_ask(notes: Notes) -> None:
    text = notes("")
    assert "curl http://127.0.0.1:8000/v1/models\n" in text
    assert "helm test demo -n llm" in text
    assert "NOT RUNNABLE" not in text and "NOT SCRAPED" not in text


def test_they_say_what_cannot_run(notes: Notes) -> None:
    text = notes(
        "decode.ranks=16,decode.groupSize=2,lws.multiHostPreview=true,decode.gpu.count=8,"
        "networkPolicy.enabled=false"
    )
    assert "NOT RUNNABLE YET: decode has groups over 2 pods" in text
    assert "compute on the CPU" in text
    assert "networkPolicy.enabled is false" in text


def test_they_say_how_to_ask_behind_certificates_and_keys(notes: Notes) -> None:
    text = notes("tls.mode=mtls,tls.existingSecret=parts,auth.existingSecret=who,auth.keysKey=k")
    asked = [line.strip() for line in text.splitlines() if line.strip().startswith("curl")]
    assert asked == [
        "curl --cacert disagg-ca.crt --resolve disagg.internal:8000:127.0.0.1 "
        '-H "Authorization: Bearer $KEY" https://disagg.internal:8000/v1/models'
    ]
    assert r"get secret parts -o jsonpath='{.data.ca\.crt}' | base64 -d > disagg-ca.crt" in text
    assert "KEY=$(kubectl -n llm get secret who -o jsonpath='{.data.k}'" in text


def test_they_say_how_long_this_balancer_drains(notes: Notes) -> None:
    assert "(up to 40 s)" in notes("balancer.drain.maxSeconds=40")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            "metrics.rules.enabled=true,metrics.serviceMonitor.enabled=true",
            "metrics.rules is on, but not metrics.podMonitor (prefill, decode, janitor).",
        ),
        (
            "metrics.rules.enabled=true,metrics.dashboards.enabled=true",
            "metrics.rules and metrics.dashboards are on, but not metrics.serviceMonitor "
            "(balancers), nor metrics.podMonitor (prefill, decode, janitor).",
        ),
        (
            "metrics.dashboards.enabled=true,metrics.serviceMonitor.enabled=true,"
            "metrics.podMonitor.enabled=true",
            "",
        ),
    ],
)
def test_they_say_what_nobody_scrapes(notes: Notes, values: str, sentence: str) -> None:
    text = notes(values)
    assert ("NOT SCRAPED BY THIS RELEASE: " in text) == bool(sentence)
    assert sentence in text


def test_they_say_that_events_are_of_ipv4(notes: Notes) -> None:
    assert "IPv4 only" in notes("events.enabled=true,listenAddress=::")
