"""The dashboards: fresh, and by the rules that all of them keep."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from charts import dashboards
from charts.boards import BOARDS
from charts.dashboards import DIRECTORY, Board, Panel, board_json
from runtime.metrics.table import TABLE

FILES = sorted(DIRECTORY.glob("*.json"))
NAMES = {row.name for row in TABLE} | {
    f"{row.name}{suffix}"
    for row in TABLE
    if row.kind == "histogram"
    for suffix in ("_bucket", "_count", "_sum")
}


def board(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def test_the_committed_files_are_fresh() -> None:
    assert dashboards.main(["--check"]) == 0, "run `make chart`"


def test_a_stale_file_is_named_and_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "disagg" / "files" / "dashboards"
    directory.mkdir(parents=True)
    (directory / "gone.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(dashboards, "DIRECTORY", directory)
    assert dashboards.main(["--check"]) == 1
    told = capsys.readouterr().out
    assert "gone.json: differs" in told and "overview.json: differs" in told
    assert not (directory / "overview.json").exists()
    (directory / "gone.json").unlink()
    assert dashboards.main([]) == 0
    assert dashboards.main(["--check"]) == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_board_keeps_the_rules(path: Path) -> None:
    found = board(path)
    assert re.fullmatch(r"disagg-[a-z-]{1,33}", found["uid"])
    assert (found["id"], found["schemaVersion"], found["timezone"]) == (None, 41, "browser")
    assert found["tags"] == ["disagg", "llm"] and "__inputs" not in found
    variables = {item["name"]: item for item in found["templating"]["list"]}
    assert {"datasource", "tempo", "namespace", "release"} <= set(variables)
    for item in variables.values():
        if item["type"] == "query":
            assert item["multi"] and item["includeAll"] and item["allValue"] == ".*"
    assert {item["name"] for item in found["annotations"]["list"]} == {"Deployments", "Drains"}
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_choose_by_the_variables_and_know_their_metrics(path: Path) -> None:
    for panel in board(path)["panels"]:
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] in ("${datasource}", "${tempo}")
            if "expr" not in target:
                continue
            query = target["expr"]
            selectors = re.findall(r"([a-z_]+)\{([^}]*)\}", query)
            assert selectors, query
            for name, selector in selectors:
                assert name in NAMES, name
                assert 'namespace=~"$namespace",release=~"$release"' in selector, query
            assert "avg" not in query, "averages of quantiles or of shares say nothing"
            for window in re.findall(r"\[([^\]]+)\]", query):
                assert window in ("$__rate_interval", "3d"), query


def test_panels_do_not_overlap_and_fill_no_more_than_the_width() -> None:
    for path in FILES:
        taken: set[tuple[int, int]] = set()
        for panel in board(path)["panels"]:
            place = panel["gridPos"]
            cells = {
                (place["x"] + x, place["y"] + y)
                for x in range(place["w"])
                for y in range(place["h"])
            }
            assert not cells & taken, (path.stem, panel["title"])
            assert place["x"] + place["w"] <= 24
            taken |= cells


def test_latencies_lead_to_traces() -> None:
    panels = [panel for path in FILES for panel in board(path)["panels"]]
    linked = [panel for panel in panels if any(t.get("exemplar") for t in panel.get("targets", []))]
    assert {"Time to first token", "Ticket to verified state"} <= {p["title"] for p in linked}
    assert all("${tempo}" in p["fieldConfig"]["defaults"]["links"][0]["url"] for p in linked)
    assert [panel["type"] for panel in panels].count("nodeGraph") == 1


def test_queries_of_a_panel_have_letters_and_legends() -> None:
    panel = Panel(title="t", queries={"a": "x{SCOPE}", "b": 'y{SCOPE,z="1"}'})
    made = board_json(Board(uid="disagg-x", title="x", text="", rows={"r": (panel,)}))
    targets = made["panels"][1]["targets"]
    assert [(item["refId"], item["legendFormat"]) for item in targets] == [("A", "a"), ("B", "b")]
    scope = 'namespace=~"$namespace",release=~"$release"'
    assert [item["expr"] for item in targets] == [f"x{{{scope}}}", f'y{{{scope},z="1"}}']


def test_titles_and_uids_are_used_once() -> None:
    assert len({board.uid for board in BOARDS}) == len({b.title for b in BOARDS}) == len(BOARDS)
