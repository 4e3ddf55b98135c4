"""Writes `disagg/values.schema.json` and `disagg/files/settings.json`, or checks them.

    python charts/schema.py            write
    python charts/schema.py --check    exit 1 if a committed file differs from a fresh one

The schema follows from `values.yaml` (types from the defaults, descriptions from the comments) and
from the settings classes of the services, so nothing is typed twice and a new setting is a new
value. Settings are spelled in camelCase in values and in snake_case in the processes; the chart
translates with Helm's `snakecase`, and this script refuses a name that would not survive the
journey. Settings that the chart computes itself (`CHART_SETS`) are left out, so that nothing has
two owners.

Comments in `values.yaml` may hold marks, each on a line of its own:

    @free              any Kubernetes content: nothing below is checked here
    @enum [...]        the values that are allowed
    @min N             lowest number
    @pattern REGEX     what a text has to look like
    @port, @ports      a port number, a list of them
    @labels            labels, whose keys the templates check: Helm would not say where one stands
    @like KEY          the same keys as the top-level KEY
    @inherit KEY       first in a map: it has all keys of the top-level KEY besides its own
    @tiers             a list of maps with a `name` and the keys of the map around it
    @settings ROLE     the settings of a role

An empty map or list without a mark is an error: one must say what may stand in it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from balancer.routing.policies import POLICIES
from cli.config import ROLES, settings_class
from runtime.settings import Settings, leaves

CHART = Path(__file__).resolve().parent / "disagg"

# What the chart sets itself, and the value it follows from.
CHART_SETS = {
    "model.path": "model.path",
    "model.name": "model.name",
    "store.url": "valkey or externalRedis",
    "listen.host": "the pod",
    "listen.port": "ports.grpc",
    "http.host": "the pod",
    "http.port": "ports.http",
    "announce.balancers": "balancer",
    "group.name": "the pod",
    "group.ranks": "ranks",
    "group.layout": "layout",
    "drain.propagation_s": "drain.propagationSeconds",
    "drain.max_s": "drain.maxSeconds",
    "log.level": "log.level",
    "log.form": "log.form",
    "events.endpoint": "events.port",
    "events.replay_endpoint": "events.replayPort",
    "routing.replicas": "balancer.replicas",
    "routing.salt": "the pod",
    "tls.mode": "tls.mode",
    "tls.cert_file": "tls.existingSecret",
    "tls.key_file": "tls.existingSecret",
    "tls.ca_file": "tls.existingSecret",
    "tls.server_name": "tls.serverName",
    "tls.peers": "tls.serverName",
    "tls.health_port": "tls.healthPort",
    "auth.keys_file": "auth.existingSecret",
    "tracing.endpoint": "telemetry.otlpEndpoint",
    "metrics.host": "the pod",
    "metrics.port": "ports.metrics",
}

# Settings that take a name out of a list that the settings class does not hold.
CHOICES = {"routing.policy": sorted(POLICIES)}

_LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

Schema = dict[str, Any]  # JSON


class ValuesError(Exception):
    """A comment or a default of values.yaml from which no schema follows."""


def camel(name: str) -> str:
    """Spelling of a setting in values: `max_num_seqs` is `maxNumSeqs`.

    Raises:
        ValuesError: Helm's `snakecase` would not lead back.
    """
    if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name):
        raise ValuesError(f"setting {name!r}: only lower-case words joined by _ become camelCase")
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def settings_schema(settings: type[Settings]) -> Schema:
    """Schema of a role's settings in values: camelCase, no references, nothing required."""
    whole = settings.model_json_schema()
    definitions = whole.get("$defs", {})

    def translate(node: Schema, path: tuple[str, ...]) -> Schema:
        if "$ref" in node:
            return translate(definitions[node["$ref"].rpartition("/")[2]], path)
        if "allOf" in node and len(node["allOf"]) == 1:
            return translate(node["allOf"][0], path)
        kept: Schema = {
            key: node[key]
            for key in ("description", "type", "enum", "pattern", "items", "minimum", "maximum")
            if key in node and not (key == "description" and "properties" in node)
        }
        for key in ("exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"):
            if key in node:
                kept[key] = node[key]
        if isinstance(node.get("additionalProperties"), dict):  # a map, e.g. by tenant
            kept["additionalProperties"] = translate(node["additionalProperties"], path)
        if "items" in kept:
            kept["items"] = translate(kept["items"], path)
        if "anyOf" in node:
            kept["anyOf"] = [translate(option, path) for option in node["anyOf"]]
        if "properties" not in node:
            return kept
        kept["additionalProperties"] = False
        kept["properties"] = {}
        for name, field in node["properties"].items():
            if ".".join((*path, name)) in CHART_SETS:
                continue
            inner = translate(field, (*path, name))
            if choices := CHOICES.get(".".join((*path, name))):
                inner["enum"] = choices
            if inner.get("properties") != {}:  # a section whose fields the chart sets
                kept["properties"][camel(name)] = inner
        return kept

    return translate(whole, ())


class _Values:
    """values.yaml with its comments."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        assert isinstance(root, yaml.MappingNode)
        self.root = root
        self.top = {key.value: value for key, value in root.value}

    def comment(self, node: yaml.Node) -> tuple[str, dict[str, str]]:
        """Description and marks directly above a key."""
        words: list[str] = []
        marks: dict[str, str] = {}
        number = node.start_mark.line - 1
        while number >= 0 and self._lines[number].lstrip().startswith("#"):
            line = self._lines[number].lstrip().removeprefix("#").strip()
            if line.startswith("@"):
                mark, _, argument = line[1:].partition(" ")
                marks[mark] = argument
            else:
                words.insert(0, line.removeprefix("-- "))
            number -= 1
        return " ".join(words), marks


def values_schema(text: str) -> Schema:
    """The schema of a values file.

    Raises:
        ValuesError: A place from which no schema follows; names the line.
    """
    values = _Values(text)
    schema: Schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart disagg",
        **_of_map(values, values.root),
    }
    # Parents of sub-charts, and Helm itself, may put this beside our keys.
    schema["properties"]["global"] = {"type": "object"}
    return schema


def _of_map(values: _Values, node: yaml.MappingNode) -> Schema:
    properties: Schema = {}
    if node.value:
        _, marks = values.comment(node.value[0][0])
        if "inherit" in marks:
            properties.update(_of_map(values, values.top[marks["inherit"]])["properties"])
    own: Schema = {}
    for key, value in node.value:
        described, marks = values.comment(key)
        own[key.value] = _of_value(values, value, marks, {**properties, **own})
        if described and not described.startswith("@"):
            own[key.value]["description"] = described
    for name, schema in own.items():
        known = properties.get(name, {})
        # A map that repeats a few keys of what it inherits still has the others.
        if "properties" in known and "properties" in schema:
            schema = {**known, "properties": {**schema["properties"], **known["properties"]}}
        elif known and "properties" not in schema:
            schema = {**known, **{key: schema[key] for key in schema if key == "description"}}
        elif known:
            schema = known
        properties[name] = schema
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _of_value(values: _Values, node: yaml.Node, marks: dict[str, str], around: Schema) -> Schema:
    where = f"values.yaml line {node.start_mark.line + 1}"
    if "settings" in marks:
        return settings_schema(settings_class(marks["settings"]))
    if "tiers" in marks:
        name = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 10}
        settings = settings_schema(settings_class("prefill"))
        keys = {**around, "name": name, "settings": settings}
        keys.pop("tiers", None)
        item = {"type": "object", "additionalProperties": False, "required": ["name"]}
        return {"type": "array", "items": {**item, "properties": keys}}
    if "like" in marks:
        return _of_map(values, values.top[marks["like"]])
    if "free" in marks:
        if isinstance(node, yaml.SequenceNode):
            return {"type": "array"}
        return {"type": "object"}
    port = {"type": "integer", "minimum": 1, "maximum": 65535}
    if "port" in marks:
        return port
    if "ports" in marks:
        return {"type": "array", "items": port}
    if "labels" in marks:
        value = {"type": "string", "pattern": _LABEL_VALUE, "maxLength": 63}
        return {"type": "object", "additionalProperties": value}
    if isinstance(node, yaml.MappingNode) and node.value:
        block = node.flow_style is not True
        if not block:  # `resources: {cpu: 1}` repeats what is inherited, or is Kubernetes' own
            return {"type": "object"}
        kubernetes = {key.value for key, _ in node.value} <= {"requests", "limits"}
        return {"type": "object"} if kubernetes else _of_map(values, node)
    if not isinstance(node, yaml.ScalarNode):
        raise ValuesError(f"{where}: say with a mark what may stand in an empty map or list")
    kind = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}.get(
        node.tag.rpartition(":")[2]
    )
    if kind is None:
        raise ValuesError(f"{where}: a default without a type")
    schema: Schema = {"type": kind}
    if "enum" in marks:
        schema["enum"] = json.loads(marks["enum"])
    if "min" in marks:
        schema["minimum"] = int(marks["min"])
    if "pattern" in marks:
        schema["pattern"] = marks["pattern"]
    return schema


def known_settings() -> Schema:
    """Names of all settings by role, for the chart to ask what the services can be told."""
    return {role: [leaf.key for leaf in leaves(settings_class(role))] for role in ROLES}


def files() -> dict[Path, str]:
    """What is generated, and its content."""
    schema = values_schema((CHART / "values.yaml").read_text(encoding="utf-8"))
    return {
        CHART / "values.schema.json": json.dumps(schema, indent=1) + "\n",
        CHART / "files" / "settings.json": json.dumps(known_settings(), indent=1) + "\n",
    }


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="schema", description="Schema of the chart's values.")
    parser.add_argument("--check", action="store_true", help="write nothing, report differences")
    check = parser.parse_args(arguments).check
    stale = []
    for path, content in files().items():
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        stale.append(path)
        if not check:
            path.write_text(content, encoding="utf-8")
    for path in stale:
        what = "differs from a fresh one; run `make chart`" if check else "written"
        sys.stdout.write(f"{path.relative_to(CHART.parent)}: {what}\n")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
