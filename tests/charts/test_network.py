"""Network policies: who may talk, and that nothing a pod needs is cut off."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.charts.conftest import Rendered
from tests.charts.objects import of_kind, one
from tests.charts.schemas import problem

pytestmark = pytest.mark.medium

Object = dict[str, Any]


def egress(objects: list[Object], name: str = "demo-disagg-prefill") -> list[Object]:
    rules = one(objects, "NetworkPolicy", name)["spec"]["egress"]
    assert isinstance(rules, list)
    return rules


def anywhere(rules: list[Object]) -> list[set[int]]:
    """Ports of the rules that do not say to whom."""
    return [{port["port"] for port in rule["ports"]} for rule in rules if "to" not in rule]


def test_only_who_must_may_talk(rendered: Rendered) -> None:
    client = "networkPolicy.clients[0].podSelector.matchLabels.app=web"
    policies = of_kind(rendered("--set", client), "NetworkPolicy")

    def callers(name: str) -> set[str]:
        found = set()
        for rule in policies[name]["spec"]["ingress"]:
            for peer in rule["from"]:
                labels = peer.get("podSelector", {}).get("matchLabels", {})
                found.add(labels.get("app") or labels.get("app.kubernetes.io/component", "any pod"))
        return found

    # Whoever monitors comes from anywhere, and only to the metrics.
    assert callers("demo-disagg-prefill") == {"balancer", "any pod"}
    assert callers("demo-disagg-decode") == {"balancer", "any pod"}
    assert callers("demo-disagg-valkey") == {"balancer", "prefill", "decode", "janitor"}
    assert callers("demo-disagg-janitor") == {"any pod"}
    for role in ("prefill", "decode", "janitor"):
        metrics_only = policies[f"demo-disagg-{role}"]["spec"]["ingress"][-1]
        assert [port["port"] for port in metrics_only["ports"]] == [9090]
    assert callers("demo-disagg-balancer") == {"web", "prefill", "decode", "test", "any pod"}
    metrics_only = policies["demo-disagg-balancer"]["spec"]["ingress"][-1]
    assert [port["port"] for port in metrics_only["ports"]] == [8000]


STORES = [
    ("redis://h", set(), {6379}),
    ("redis://h:6390/2", set(), {6390}),
    ("rediss://user@[fd00::1]:6390?db=2", set(), {6390}),
    ("redis://[fd00::1]", set(), {6379}),
    ("redis+cluster://h:7000", {7001, 7002}, {7000, 7001, 7002}),
    ("redis+sentinel://a:26380,b/main", set(), {26380, 26379, 6379}),
    ("redis+sentinel://a,b/main/1", {6400}, {26379, 6400}),
]


@pytest.mark.parametrize(("url", "more", "ports"), STORES)
def test_the_store_is_reached_wherever_it_is(
    rendered: Rendered, url: str, more: set[int], ports: set[int]
) -> None:
    store = {"url": url, "ports": sorted(more)}
    values = ("--set-json", f"externalRedis={json.dumps(store)}", "--set", "valkey.enabled=false")
    objects = rendered(*values)
    for part in ("balancer", "prefill", "decode", "janitor"):
        assert anywhere(egress(objects, f"demo-disagg-{part}")) == [{53}, ports], part
    assert problem(one(objects, "NetworkPolicy", "demo-disagg-prefill")) is None


COLLECTORS = [
    ("http://c:4317", 4317),
    ("http://c:4318/", 4318),
    ("http://[fd00::1]:4317", 4317),
    ("https://c:4317", 4317),
    ("https://c", 443),  # by gRPC as by HTTP: the exporters know no other
    ("https://[fd00::1]/", 443),
]


@pytest.mark.parametrize(("endpoint", "port"), COLLECTORS)
def test_the_collector_is_reached_wherever_it_is(
    rendered: Rendered, endpoint: str, port: int
) -> None:
    objects = rendered("--set", f"telemetry.otlpEndpoint={endpoint}")
    for part in ("balancer", "prefill", "decode"):
        assert anywhere(egress(objects, f"demo-disagg-{part}")) == [{53}, {port}], part


def test_names_are_asked_of_a_cache_on_the_node_too(rendered: Rendered) -> None:
    """NodeLocal DNSCache answers at an address of the node, which no selector of pods holds."""
    ports = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
    for policy in of_kind(rendered(), "NetworkPolicy").values():
        if not policy["metadata"]["name"].endswith("-valkey"):
            assert {"ports": ports} in policy["spec"]["egress"], policy["metadata"]["name"]
    block = {"ipBlock": {"cidr": "169.254.20.10/32"}}
    objects = rendered("--set-json", f"networkPolicy.dns={json.dumps([block])}")
    assert {"to": [block], "ports": ports} in egress(objects)
    assert problem(one(objects, "NetworkPolicy", "demo-disagg-prefill")) is None
