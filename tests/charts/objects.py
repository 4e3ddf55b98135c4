"""Finding things in rendered objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

Object = dict[str, Any]


def of_kind(objects: Sequence[Object], kind: str) -> dict[str, Object]:
    """Objects of a kind by name."""
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def one(objects: Sequence[Object], kind: str, name: str) -> Object:
    return of_kind(objects, kind)[name]


def pods(objects: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """Kind/name and pod template of everything that makes pods."""
    for item in objects:
        where = f"{item['kind']}/{item['metadata']['name']}"
        if item["kind"] in ("Deployment", "StatefulSet"):
            yield where, item["spec"]["template"]
        elif item["kind"] == "LeaderWorkerSet":
            yield where, item["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        elif item["kind"] == "Pod":
            yield where, item


def roles(objects: Sequence[Object]) -> dict[str, Object]:
    """Pod templates of balancer, prefill and decode by kind/name."""
    return {
        where: pod
        for where, pod in pods(objects)
        if component(pod) in ("balancer", "prefill", "decode")
    }


def component(item: Object) -> str:
    return str(item["metadata"]["labels"]["app.kubernetes.io/component"])


def container(pod: Object) -> Object:
    [only] = pod["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def config(objects: Sequence[Object], name: str) -> Object:
    """The settings file of a workload."""
    settings = json.loads(one(objects, "ConfigMap", name)["data"]["config.json"])
    assert isinstance(settings, dict)
    return settings
