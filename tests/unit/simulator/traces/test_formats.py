"""Trace readers: real heads of files, and every way a row can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.traces import formats
from simulator.traces.formats import TraceError, read_trace

DATA = Path(__file__).parents[3] / "data"
GOOD = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


def test_mooncake_rows() -> None:
    trace = read_trace(DATA / "mooncake_conversation_head.jsonl")
    first = trace.requests[0]
    assert (first.prompt_tokens, first.output_tokens) == (6758, 500)
    assert first.blocks == tuple(range(14))
    assert len(trace.requests) == 400
    assert trace.requests[-1].arrived_s > 60
    assert not trace.is_generated


def test_azure_rows() -> None:
    trace = read_trace(DATA / "azure_conv_head.csv")
    assert len(trace.requests) == 1000
    assert (trace.requests[0].prompt_tokens, trace.requests[0].output_tokens) == (374, 44)
    assert trace.requests[0].blocks == ()
    assert trace.requests[1].arrived_s == pytest.approx(4.314579, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp": "0"}, "line 2: timestamp is '0'"),
        ({"timestamp": -1}, "line 2: timestamp is -1"),
        ({"timestamp": float("nan")}, "line 2: timestamp is nan"),
        ({"input_length": 0}, "line 2: input_length is '0'; a whole number of 1 to"),
        ({"input_length": 6.5}, "line 2: input_length is '6.5'"),
        ({"output_length": None}, "line 2: output_length is 'None'"),
        ({"output_length": True}, "line 2: output_length is 'True'"),
        ({"hash_ids": [1]}, r"line 2: hash_ids has 1 ids, but input_length 600 has 2 blocks"),
        ({"hash_ids": [1, "x"]}, "line 2: hash_ids is .*a list of integers"),
        ({"hash_ids": {}}, "line 2: hash_ids"),
        ({"hash_ids": [1, 10**30]}, "line 2: hash_ids"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | change) + "\n")
    with pytest.raises(TraceError, match=message):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"{nonsense\n", "line 1: not JSON"),
        (b'{"timestamp": 5, "input_length": 1, "output_length": 1}\n[1]\n', "line 2: list instead"),
        (b"\xff\xfe\x00", "is not text"),
        (b"a,b\n1,2\n", "line 1: no column 'TIMESTAMP'"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "no rows after the header"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n", "line 2: TIMESTAMP is 'noon'"),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,x,2\n",
            "line 2: ContextTokens is 'x'",
        ),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1\n",
            "line 2: 2 columns, the header has 3",
        ),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n"
            b"2023-11-16 18:15:45,1,1\n",
            "line 3: TIMESTAMP .* is before",
        ),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_time_does_not_run_backwards(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(GOOD | {"timestamp": at}) for at in (10, 9)))
    with pytest.raises(TraceError, match="line 2: timestamp 9 is before 10"):
        read_trace(path)


def test_rows_and_lines_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text((json.dumps(GOOD) + "\n") * 4)
    with pytest.raises(TraceError, match="more than 3 rows"):
        read_trace(path, max_rows=3)
    monkeypatch.setattr(formats, "MAX_LINE_BYTES", 20)
    with pytest.raises(TraceError, match="line 1: longer than 20"):
        read_trace(path)


def test_a_missing_file_says_which_flag(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="check --trace"):
        read_trace(tmp_path / "none.jsonl")
