"""The schema of the chart's values follows from its comments and from the settings classes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from charts import schema
from charts.schema import (
    CHART,
    CHART_SETS,
    ValuesError,
    camel,
    settings_schema,
    values_schema,
)
from cli.config import ROLES, settings_class
from runtime.settings import Settings, leaves, setting


class Inner(Settings):
    """A section."""

    max_size: int = setting(1, help="how large", ge=1)
    mode: str | None = setting(None, help="how")
    port: int = setting(0, help="the chart's")
    by_name: dict[str, int] = setting({}, help="a number each")


class Outer(Settings):
    """A tree."""

    inner_part: Inner = Inner()


def snake(name: str) -> str:
    """As Helm's `snakecase` has it, for the names that `camel` lets through."""
    return re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name)


@pytest.mark.medium
def test_the_committed_files_are_fresh() -> None:
    assert schema.main(["--check"]) == 0, "a setting or values.yaml changed: make chart"


def test_a_stale_file_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    path.write_text("old", encoding="utf-8")
    monkeypatch.setattr(schema, "CHART", tmp_path / "disagg")
    monkeypatch.setattr(schema, "files", lambda: {path: "new"})
    assert schema.main(["--check"]) == 1
    assert "x.json: differs from a fresh one; run `make chart`" in capsys.readouterr().out
    assert path.read_text(encoding="utf-8") == "old"
    assert schema.main([]) == 0
    assert schema.main(["--check"]) == 0


def test_settings_are_spelled_in_camel_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHART_SETS, "inner_part.port", "ports")
    found = settings_schema(Outer)
    inner = found["properties"]["innerPart"]
    assert set(inner["properties"]) == {"maxSize", "mode", "byName"}
    assert inner["additionalProperties"] is False
    jsonschema.validate({"innerPart": {"maxSize": 2, "byName": {"Any-one": 1}}}, found)
    for wrong in (
        {"innerPart": {"byName": {"a": "b"}}},
        {"innerPart": {"maxSize": 0}},
        {"innerPart": {"port": 1}},
        {"other": {}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, found)


@pytest.mark.parametrize("name", ["size_2", "Size", "_size", "a__b"])
def test_a_name_that_helm_would_spell_otherwise_is_refused(name: str) -> None:
    with pytest.raises(ValuesError, match=name):
        camel(name)


@pytest.mark.parametrize("role", ROLES)
def test_every_setting_is_a_value_or_the_charts(role: str) -> None:
    """Nothing is lost on the way, and nothing has two owners."""
    found: set[str] = set()

    def walk(node: dict[str, Any], path: tuple[str, ...]) -> None:
        for name, inner in node.get("properties", {}).items():
            walk(inner, (*path, snake(name)))
        if "properties" not in node:
            found.add(".".join(path))

    walk(settings_schema(settings_class(role)), ())
    keys = {leaf.key for leaf in leaves(settings_class(role))}
    assert found == keys - set(CHART_SETS)


def test_what_the_chart_sets_exists() -> None:
    every = {leaf.key for role in ROLES for leaf in leaves(settings_class(role))}
    assert set(CHART_SETS) <= every


@pytest.mark.medium
def test_the_defaults_fit_their_own_schema() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    committed = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(committed)
    jsonschema.validate(values, committed)


def test_every_value_is_described() -> None:
    """In place, or by the map around it; settings bring their own words."""
    committed = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    bare: list[str] = []

    def walk(node: dict[str, Any], path: str, described: bool) -> None:
        known = described or bool(node.get("description"))
        if "properties" in node:
            for name, inner in node["properties"].items():
                walk(inner, f"{path}.{name}", known and bool(path))
        elif not known:
            bare.append(path)

    for name, inner in committed["properties"].items():
        if name != "global":
            walk(inner, name, False)
    assert len(bare) < 25, bare


def test_marks_decide_what_may_stand_where() -> None:
    text = """\
# -- Common.
common:
  # @min 1
  size: 2
  # -- Words.
  name: ""
# -- A role.
role:
  # @inherit common
  # @port
  port: 80
  size: 3
  # @enum ["a", "b"]
  kind: a
  # @free
  labels: {}
"""
    found = values_schema(text)
    role = found["properties"]["role"]["properties"]
    assert set(role) == {"size", "name", "port", "kind", "labels"}
    assert role["size"]["minimum"] == 1
    assert role["name"]["description"] == "Words."
    jsonschema.validate({"role": {"labels": {"any": {"thing": 1}}}}, found)
    for wrong in ({"port": 0}, {"kind": "c"}, {"size": 0}, {"siz": 1}, {"labels": "x"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"role": wrong}, found)


@pytest.mark.parametrize(
    ("text", "words"),
    [("a: {}\n", "line 1: say with a mark"), ("a:\n  b: []\n", "line 2"), ("a: null\n", "type")],
)
def test_a_default_that_says_nothing_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValuesError, match=words):
        values_schema(text)
