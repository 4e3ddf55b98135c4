"""Tables and units."""

from __future__ import annotations

import json

import pytest

from cli.output import duration, plural, say, show, show_json, size, table


def test_columns_stand_under_each_other() -> None:
    assert table([("a", "1"), ("long", "22")], right=(1,)) == ["  a      1", "  long  22"]
    assert table([("a", ""), ("bb", "")]) == ["  a", "  bb"]


@pytest.mark.parametrize(
    ("us", "text"), [(0, "0 us"), (999, "999 us"), (1500, "1.5 ms"), (2_340_000, "2.34 s")]
)
def test_durations(us: float, text: str) -> None:
    assert duration(us) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (9_999, "9,999 B"), (271_900, "271.9 KB"), (12_345_678, "12.3 MB")],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


def test_plurals() -> None:
    assert (plural(1, "token"), plural(0, "token")) == ("1 token", "0 tokens")


def test_results_and_remarks_do_not_mix(capsys: pytest.CaptureFixture[str]) -> None:
    say("working")
    show("result")
    show_json({"text": "é"})
    captured = capsys.readouterr()
    assert captured.err == "working\n"
    assert captured.out.splitlines()[0] == "result"
    assert json.loads(captured.out.splitlines()[1]) == {"text": "é"}
    assert "é" in captured.out
