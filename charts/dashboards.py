"""Writes the dashboards of Grafana into `disagg/files/dashboards`, or checks them.

    python -m charts.dashboards            write
    python -m charts.dashboards --check    exit 1 if a committed file differs from a fresh one

The boards themselves are in `charts.boards`; here is what they share: variables, links, annotations
and the form of a panel. Classic JSON, as every Grafana of today imports it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).resolve().parent / "disagg" / "files" / "dashboards"
SCHEMA_VERSION = 41
TAGS = ("disagg", "llm")
WIDTH = 24
PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
TEMPO = {"type": "tempo", "uid": "${tempo}"}
SCOPE = 'namespace=~"$namespace",release=~"$release"'
"""In every selector: what the variables at the top of a board choose."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        queries: PromQL by legend.
        kind: timeseries, stat, table, bargauge, heatmap or nodeGraph.
        unit: Of Grafana, such as `s`, `percentunit`, `bytes`, `reqps`, `short`.
        width, height: In the grid of 24 columns.
        has_exemplars: Points of the graph lead to traces.
        is_stacked: Areas on top of each other.
        most: Fixed upper end of the axis.
    """

    title: str
    queries: Mapping[str, str]
    text: str = ""
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 12
    height: int = 8
    has_exemplars: bool = False
    is_stacked: bool = False
    most: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard; `rows` are panels under a heading."""

    uid: str
    title: str
    text: str
    rows: Mapping[str, Sequence[Panel]]
    variables: Sequence[str] = field(default_factory=tuple)


def scoped(query: str) -> str:
    """The query with what every selector has in common in place of `SCOPE`."""
    return query.replace("{SCOPE,", f"{{{SCOPE},").replace("{SCOPE}", f"{{{SCOPE}}}")


def board_json(board: Board) -> Json:
    """The dashboard as Grafana reads it."""
    panels: list[Json] = []
    top = 0
    for heading, row in board.rows.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": heading,
                "collapsed": False,
                "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": top},
                "panels": [],
            }
        )
        top += 1
        left = line = 0
        for panel in row:
            if left + panel.width > WIDTH:
                top, left, line = top + line, 0, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            panels.append(_panel(panel, len(panels) + 1, place))
            left, line = left + panel.width, max(line, panel.height)
        top += line
    return {
        "uid": board.uid,
        "id": None,
        "title": board.title,
        "description": board.text,
        "tags": list(TAGS),
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "title": "disagg",
                "tags": ["disagg"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "annotations": {"list": _annotations()},
        "templating": {"list": _variables(board.variables)},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: Json) -> Json:
    if panel.kind == "nodeGraph":
        return {
            "id": number,
            "type": "nodeGraph",
            "title": panel.title,
            "description": panel.text,
            "gridPos": place,
            "datasource": TEMPO,
            "targets": [{"refId": "A", "datasource": TEMPO, "queryType": "serviceMap"}],
        }
    defaults: Json = {"unit": panel.unit, "custom": {}}
    if panel.most is not None:
        defaults |= {"min": 0, "max": panel.most}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 30 if panel.is_stacked else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.is_stacked else "none"},
        }
        defaults["min"] = 0
    if panel.has_exemplars:
        defaults["links"] = [
            {
                "title": "Trace",
                "url": "/explore?left=%7B%22datasource%22:%22${tempo}%22,%22queries%22:%5B%7B"
                "%22queryType%22:%22traceql%22,%22query%22:%22${__data.fields.trace_id}%22%7D%5D%7D",
            }
        ]
    targets = [
        {
            "refId": chr(ord("A") + idx),
            "datasource": PROMETHEUS,
            "expr": scoped(query),
            "legendFormat": legend,
            "exemplar": panel.has_exemplars,
            **(
                {"format": "table", "instant": True}
                if panel.kind == "table"
                else {"instant": True}
                if panel.kind in ("stat", "bargauge")
                else {}
            ),
        }
        for idx, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "gridPos": place,
        "datasource": PROMETHEUS,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel.kind),
        "targets": targets,
    }


def _options(kind: str) -> Json:
    calculation = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    if kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if kind == "stat":
        return {**calculation, "colorMode": "value", "graphMode": "area"}
    if kind == "bargauge":
        return {**calculation, "displayMode": "basic", "orientation": "horizontal"}
    if kind == "heatmap":
        return {"calculate": False, "color": {"scheme": "Oranges", "mode": "scheme"}}
    return {}


def _annotations() -> list[Json]:
    deployed = (
        f"count by (version, role) (disagg_build_info{{{SCOPE}}} "
        f"unless disagg_build_info{{{SCOPE}}} offset 2m)"
    )
    tracks = {
        "Deployments": ("blue", deployed, "{{role}} {{version}}"),
        "Drains": ("orange", f"max by (role) (disagg_draining{{{SCOPE}}}) > 0", "{{role}} drains"),
    }
    return [
        {
            "name": name,
            "datasource": PROMETHEUS,
            "enable": True,
            "iconColor": color,
            "expr": query,
            "titleFormat": title,
            "step": "60s",
        }
        for name, (color, query, title) in tracks.items()
    ]


def _variables(names: Sequence[str]) -> list[Json]:
    sources = [
        {"name": name, "label": label, "type": "datasource", "query": kind, "hide": 0}
        for name, label, kind in (
            ("datasource", "Prometheus", "prometheus"),
            ("tempo", "Tempo", "tempo"),
        )
    ]
    queries = {
        "namespace": "label_values(disagg_build_info, namespace)",
        "release": 'label_values(disagg_build_info{namespace=~"$namespace"}, release)',
        "model_name": f"label_values(disagg_requests_total{{{SCOPE}}}, model_name)",
        "tier": f"label_values(disagg_tier_backlog_tokens{{{SCOPE}}}, tier)",
    }
    chosen = [name for name in queries if name in ("namespace", "release", *names)]
    return sources + [
        {
            "name": name,
            "type": "query",
            "datasource": PROMETHEUS,
            "query": {"query": queries[name], "refId": name},
            "definition": queries[name],
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
            "refresh": 2,
            "sort": 1,
        }
        for name in chosen
    ]


def files() -> dict[Path, str]:
    """What is generated, and its content."""
    from charts.boards import BOARDS

    return {
        DIRECTORY / f"{board.uid.removeprefix('disagg-')}.json": json.dumps(
            board_json(board), indent=1
        )
        + "\n"
        for board in BOARDS
    }


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="dashboards", description="Dashboards of Grafana.")
    parser.add_argument("--check", action="store_true", help="write nothing, report differences")
    check = parser.parse_args(arguments).check
    fresh = files()
    stale = [path for path in DIRECTORY.glob("*.json") if path not in fresh]
    for path, content in fresh.items():
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        stale.append(path)
        if not check:
            path.write_text(content, encoding="utf-8")
    for path in stale:
        what = "differs from a fresh one; run `make chart`" if check else "written"
        sys.stdout.write(f"{path.relative_to(DIRECTORY.parents[2])}: {what}\n")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
