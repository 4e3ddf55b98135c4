"""The picture of a trace, as people see it."""

import json

from hypothesis import given
from hypothesis import strategies as st

from cli.traces.waterfall import MAX_COLUMNS, MIN_COLUMNS, Waterfall, plain
from tests.fakes.trace_spans import a_request, a_span

# Checked by eye; every line means something.
PICTURE = """\
trace 00000000000000000000000000000001  6 spans of 3 processes, 100.0 ms
      40 prompt tokens (32 cached), 8 tokens generated, first after 50.0 ms

                                           at ms   took ms  0     25.0      50.0      75.0     100.0
balancer   GenerationService/Generate        0.0     100.0  ████████████████████◆███████████████████
           ├─ balancer.route                 1.0       2.0  █▎
           ├─ → PrefillService/Prefill       5.0      45.0    ╾────────────────╼
prefill r0 │  └─ prefill.commit             40.0       8.0                  ███▎ hand-off 01234567
decode r1  └─ decode.fetch                  52.0       6.0                      ███▎
              │  12.3 KB, verified, <- kv_handoff prefill.commit, <- kv_prefix_reuse trace 00000000
              └─ decode.generate            60.0      40.0                  3 steps ████████████████
"""


def test_the_picture() -> None:
    lines = list(Waterfall(a_request(), columns=100).lines())
    assert [line.rstrip() for line in lines] == PICTURE.rstrip("\n").split("\n")


def test_no_line_is_longer_than_the_terminal() -> None:
    for columns in (MIN_COLUMNS, 100, 137, MAX_COLUMNS):
        assert max(map(len, Waterfall(a_request(), columns=columns).lines())) <= columns


def test_extreme_widths_are_bounded() -> None:
    narrow = list(Waterfall(a_request(), columns=10).lines())
    assert narrow == list(Waterfall(a_request(), columns=MIN_COLUMNS).lines())
    wide = list(Waterfall(a_request(), columns=10_000).lines())
    assert wide == list(Waterfall(a_request(), columns=MAX_COLUMNS).lines())


def test_colours_tell_processes_apart_and_change_no_text() -> None:
    bare = list(Waterfall(a_request()).lines())
    painted = list(Waterfall(a_request(), has_colours=True).lines())
    assert any("\x1b[36m" in line for line in painted)
    assert any("\x1b[33m" in line for line in painted)
    for code in ("\x1b[0m", "\x1b[2m", *(f"\x1b[{colour}m" for colour in range(31, 37))):
        painted = [line.replace(code, "") for line in painted]
    assert [line.rstrip() for line in painted] == [line.rstrip() for line in bare]


def test_a_long_name_is_cut_and_nothing_else_moves() -> None:
    lines = list(Waterfall([a_span(1, "x" * 200, took=5)], columns=100).lines())
    assert "…" in lines[-1]
    assert len(lines[-1]) <= 100


times = st.tuples(st.floats(0, 1e6), st.floats(0, 1e6))


@given(st.lists(times, min_size=1, max_size=8), st.integers(60, 200))
def test_every_span_has_its_line_whatever_its_times(
    spans: list[tuple[float, float]], columns: int
) -> None:
    trace = [
        a_span(n, f"s{n}", parent=n - 1 if n % 3 else 0, at=at, took=took, disagg__steps=n)
        for n, (at, took) in enumerate(spans, 1)
    ]
    lines = list(Waterfall(trace, columns=columns).lines())
    for n in range(1, len(spans) + 1):
        assert any(f"s{n} " in line for line in lines)
    assert max(map(len, lines)) <= max(MIN_COLUMNS, columns)


def test_the_same_as_json() -> None:
    found = json.loads(json.dumps(plain("r-1", [a_request()])))
    assert found["request_id"] == "r-1"
    (trace,) = found["traces"]
    assert trace["took_ms"] == 100.0
    fetch = next(span for span in trace["spans"] if span["name"] == "decode.fetch")
    assert (fetch["at_ms"], fetch["took_ms"], fetch["depth"]) == (52.0, 6.0, 1)
    assert fetch["attributes"]["disagg.verified"] == "true"
    assert fetch["links"][0]["kind"] == "kv_handoff"
    assert trace["spans"][0]["events"] == [{"name": "first_token", "at_ms": 50.0, "attributes": {}}]
    assert trace["spans"][0]["kind"] == "server"
