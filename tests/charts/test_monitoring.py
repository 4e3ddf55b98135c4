"""Monitoring: what is scraped and how it is called, rules, dashboards."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from charts.golden import CHART, presets, render
from tests.charts.conftest import Rendered, parse
from tests.charts.objects import config, container, of_kind, one
from tests.charts.schemas import problem

pytestmark = pytest.mark.medium

RULES = """\
groups:
  - name: disagg.sample
    rules:
      - record: disagg:requests:rate5m
        expr: sum(rate(disagg_requests_total[5m]))
      - alert: DisaggSample
        expr: disagg_worker_ready == 0
        for: 5m
        labels: {severity: warning}
        annotations: {summary: "{{ $labels.instance }} is not ready"}
"""
DASHBOARD = {"uid": "disagg-sample", "panels": [{"targets": [{"legendFormat": "{{model_name}}"}]}]}


def test_monitors_scrape_each_process_once(rendered: Rendered) -> None:
    objects = rendered("--set", "metrics.serviceMonitor.enabled=true")
    monitor = one(objects, "ServiceMonitor", "demo-disagg-balancer")
    assert problem(monitor) is None
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    targets = [
        (name, port["name"])
        for name, service in of_kind(objects, "Service").items()
        if selector <= service["metadata"]["labels"].items()
        for port in service["spec"]["ports"]
        if port["name"] == monitor["spec"]["endpoints"][0]["port"]
    ]
    assert targets == [("demo-disagg-balancer", "http")]


def test_a_balancer_with_tls_is_scraped_over_it(rendered: Rendered) -> None:
    values = "metrics.serviceMonitor.enabled=true,tls.mode=mtls,tls.existingSecret=parts"
    monitor = one(rendered("--set", values), "ServiceMonitor", "demo-disagg-balancer")
    assert problem(monitor) is None
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "serverName": "disagg.internal",
        "ca": {"secret": {"name": "parts", "key": "ca.crt"}},
    }


def test_each_rank_and_the_janitor_are_scraped(rendered: Rendered) -> None:
    objects = rendered("--set", "metrics.podMonitor.enabled=true,decode.ranks=3")
    pod = one(objects, "Deployment", "demo-disagg-decode")["spec"]["template"]
    ports = {port["name"]: port["containerPort"] for port in container(pod)["ports"]}
    monitor = one(objects, "PodMonitor", "demo-disagg-decode")
    scraped = [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]]
    assert [ports[name] for name in scraped] == [9090, 9091, 9092]
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    assert selector <= pod["metadata"]["labels"].items()
    assert config(objects, "demo-disagg-decode")["metrics"] == {"host": "0.0.0.0", "port": 9090}
    policy = one(objects, "NetworkPolicy", "demo-disagg-decode")["spec"]["ingress"]
    assert {"protocol": "TCP", "port": 9090, "endPort": 9092} in policy[1]["ports"]
    janitor = one(objects, "PodMonitor", "demo-disagg-janitor")
    (endpoint,) = janitor["spec"]["podMetricsEndpoints"]
    pod = one(objects, "Deployment", "demo-disagg-janitor")["spec"]["template"]
    assert {port["name"]: port["containerPort"] for port in container(pod)["ports"]} == {
        endpoint["port"]: config(objects, "demo-disagg-janitor")["metrics"]["port"]
    }
    # By the first the dashboards choose.
    assert endpoint["relabelings"] == [
        {"targetLabel": "release", "replacement": "demo"},
        {"targetLabel": "job", "replacement": "disagg-janitor"},
    ]
    assert {item["kind"]: text for item in objects if (text := problem(item))} == {}


@pytest.fixture(scope="module")
def chart_with_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart with one rule file and one dashboard more."""
    chart = tmp_path_factory.mktemp("chart") / "disagg"
    shutil.copytree(CHART, chart)
    for name in ("rules", "dashboards"):
        (chart / "files" / name).mkdir(exist_ok=True)
    (chart / "files" / "rules" / "zz_sample.yaml").write_text(RULES, encoding="utf-8")
    dashboard = chart / "files" / "dashboards" / "zz_sample.json"
    dashboard.write_text(json.dumps(DASHBOARD), encoding="utf-8")
    return chart


def test_rules_and_dashboards_arrive_as_they_are(helm: Path, chart_with_files: Path) -> None:
    """Their own braces survive; each file is an object, and all fit their schemas."""
    values = (
        "metrics.rules.enabled=true,metrics.dashboards.enabled=true,metrics.rules.labels.release=p"
    )
    objects = parse(render(helm, "--set", values, chart=chart_with_files))
    rules = of_kind(objects, "PrometheusRule")
    files = chart_with_files / "files"
    assert len(rules) == len(list((files / "rules").glob("*.y*ml")))
    assert rules["demo-disagg-zz-sample"]["spec"] == yaml.safe_load(RULES)
    assert all(item["metadata"]["labels"]["release"] == "p" for item in rules.values())
    boards = {
        name: item
        for name, item in of_kind(objects, "ConfigMap").items()
        if item["metadata"]["labels"].get("grafana_dashboard") == "1"
    }
    assert len(boards) == len(list((files / "dashboards").glob("*.json")))
    sample = boards["demo-disagg-dashboard-zz-sample"]
    assert json.loads(sample["data"]["zz_sample.json"]) == DASHBOARD
    assert sample["metadata"]["annotations"]["grafana_folder"] == "disagg"
    assert {
        name: problem(item) for name, item in {**rules, **boards}.items() if problem(item)
    } == {}


def test_alerts_link_to_the_runbook_of_the_house(rendered: Rendered) -> None:
    values = "metrics.rules.enabled=true,metrics.rules.runbookUrl=https://wiki/runbooks"
    groups = of_kind(rendered("--set", values), "PrometheusRule")["demo-disagg-alerts"]
    links = {
        rule["alert"]: rule["annotations"]["runbook_url"]
        for group in groups["spec"]["groups"]
        for rule in group["rules"]
    }
    assert links["DisaggKvStoreDown"] == "https://wiki/runbooks#disaggkvstoredown"
    assert all(link.startswith("https://wiki/runbooks#") for link in links.values())


def test_a_rule_file_without_groups_is_refused(helm: Path, tmp_path: Path) -> None:
    chart = tmp_path / "disagg"
    shutil.copytree(CHART, chart)
    (chart / "files" / "rules").mkdir(exist_ok=True)
    (chart / "files" / "rules" / "bad.yaml").write_text("rules: []\n", encoding="utf-8")
    with pytest.raises(Exception, match=r"files/rules/bad.yaml has no groups"):
        render(helm, "--set", "metrics.rules.enabled=true", chart=chart)


def test_targets_have_the_job_that_their_alert_asks_for(rendered: Rendered) -> None:
    """Whatever the objects are called: the operator would make the job of their names."""
    values = "fullnameOverride=llm,metrics.serviceMonitor.enabled=true"
    objects = rendered("--set", f"{values},metrics.podMonitor.enabled=true")
    jobs = {
        item["metadata"]["labels"]["app.kubernetes.io/component"]: relabeling["replacement"]
        for item in objects
        if item["kind"] in ("PodMonitor", "ServiceMonitor")
        for endpoint in item["spec"].get("endpoints") or item["spec"]["podMetricsEndpoints"]
        for relabeling in endpoint["relabelings"]
        if relabeling["targetLabel"] == "job"
    }
    assert set(jobs) == {"balancer", "prefill", "decode", "janitor"}
    alerts = yaml.safe_load((CHART / "files" / "rules" / "alerts.yaml").read_text(encoding="utf-8"))
    [asked] = [
        rule["expr"]
        for group in alerts["groups"]
        for rule in group["rules"]
        if rule["alert"] == "DisaggTargetDown"
    ]
    [regex] = re.findall(r'up\{job=~"(.*)"\} == 0', asked)
    assert all(re.fullmatch(regex, job) for job in jobs.values()), (regex, jobs)


def test_presets_scrape_all_that_their_rules_and_boards_ask_about(rendered: Rendered) -> None:
    for path in presets():
        objects = rendered("--values", str(path))
        asks = "PrometheusRule" in {item["kind"] for item in objects}
        scraped = {*of_kind(objects, "PodMonitor"), *of_kind(objects, "ServiceMonitor")}
        parts = {f"demo-disagg-{part}" for part in ("balancer", "prefill", "decode", "janitor")}
        assert scraped == (parts if asks else set()), path.name


def test_the_time_between_scrapes_may_be_that_of_the_prometheus(rendered: Rendered) -> None:
    values = "metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.interval="
    monitor = one(rendered("--set", values), "ServiceMonitor", "demo-disagg-balancer")
    assert "interval" not in monitor["spec"]["endpoints"][0]
