"""Strict schemas of rendered objects: Kubernetes' own, and those of extensions beside this file.

`crds/` describes only the fields that the chart uses, each object closed: what the chart writes
beyond them is an error here until somebody has looked it up. They were written for this repository
from the extensions' documented fields; they are no copies.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
from kubernetes_validate import utils

CRDS = Path(__file__).parent / "crds"
VERSIONS = ("1.32", "1.37")
"""The oldest release the chart supports, and the newest whose schemas are installed."""

# It reads several megabytes of JSON for every object.
utils.schema_contents = functools.cache(utils.schema_contents)


def problem(item: dict[str, Any], version: str = VERSIONS[-1]) -> str | None:
    """What is wrong with an object; None if nothing."""
    try:
        crd = CRDS / f"{item['kind'].lower()}.json"
        if crd.exists():
            _check_extension(item, json.loads(crd.read_text(encoding="utf-8")))
        else:
            kubernetes_validate.validate(item, version, strict=True)
    except jsonschema.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    except utils.SchemaNotFoundError as error:
        return str(error.message)
    return None


def _check_extension(item: dict[str, Any], schema: dict[str, Any]) -> None:
    outer = json.loads(json.dumps(item))
    for template in _templates(outer):
        # A pod inside an extension is Kubernetes' own again.
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        kubernetes_validate.validate(pod, VERSIONS[-1], strict=True)
    jsonschema.Draft7Validator(schema).validate(outer)


def _templates(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Pod templates of an extension; they are replaced by {} in it."""
    found = []
    if item["kind"] == "LeaderWorkerSet":
        group = item["spec"]["leaderWorkerTemplate"]
        for name in ("leaderTemplate", "workerTemplate"):
            if name in group:
                found.append(group[name])
                group[name] = {}
    return found
