"""Golden files: both schemas, every way to be broken, and what a comparison says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.errors import CommandError
from cli.golden import Case, Comparison, Verdict, load_golden
from runtime.errors import ExitCode

MODEL = Path(__file__).parents[3] / "models" / "tiny-v4"


def write(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "golden.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_schema_of_the_tiny_models() -> None:
    golden = load_golden(MODEL / "golden.json")
    assert len(golden.cases) == 20
    assert all(len(case.greedy_ids) == 64 for case in golden.cases)
    assert golden.cases[0].input_ids == (0, 1582, 32, 205)
    assert golden.kv_quantisers == "off"


@pytest.mark.parametrize(
    ("said", "meant"), [(None, "off"), ("on", "on"), ("off", "off"), (True, "on"), (False, "off")]
)
def test_the_schema_of_the_small_checkpoints(tmp_path: Path, said: object, meant: str) -> None:
    content = {
        "prompts": [
            {"name": "a", "input_ids": [1], "greedy": [2, 3]},
            {"input_ids": [4], "greedy": [5]},
        ]
    }
    if said is not None:
        content["kv_quantisers"] = said  # type: ignore[assignment]
    golden = load_golden(write(tmp_path, content))
    assert golden.cases[0] == Case(name="a", input_ids=(1,), greedy_ids=(2, 3))
    assert golden.cases[1].name == "1"
    assert golden.kv_quantisers == meant


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ([1], "neither `cases` nor `prompts`"),
        ({}, "neither `cases` nor `prompts`"),
        ({"cases": []}, "`cases` is empty"),
        ({"cases": [3]}, r"cases\[0\] is no object"),
        ({"prompts": [{"input_ids": [1]}]}, r"prompts\[0\].greedy is no list of token ids"),
        ({"cases": [{"input_ids": [], "greedy_ids": [1]}]}, "input_ids is no list"),
        ({"cases": [{"input_ids": [True], "greedy_ids": [1]}]}, "input_ids is no list"),
        ({"cases": [{"input_ids": [1], "greedy_ids": [1]}], "kv_quantisers": "maybe"}, "'maybe'"),
        ({"cases": [{"input_ids": [1], "greedy_ids": [1]}], "kv_quantisers": []}, "on or off"),
    ],
)
def test_broken_files_exit_2(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        load_golden(write(tmp_path, content))
    assert caught.value.exit_code is ExitCode.CONFIGURATION


def test_a_missing_file_exits_2(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read"):
        load_golden(tmp_path / "no.json")


def compare(*found: int, error: str = "") -> Comparison:
    case = Case(name="a", input_ids=(1, 2), greedy_ids=(7, 8, 9))
    return Comparison(case=case, found=found, error=error)


def test_an_equal_file() -> None:
    verdict = Verdict(comparisons=(compare(7, 8, 9), compare(7, 8, 9)))
    assert verdict.is_equal
    assert str(verdict) == "prompts 2/2 equal, tokens 6/6 equal"
    assert verdict.as_json() == {
        "prompts": 2,
        "prompts_equal": 2,
        "tokens": 6,
        "tokens_equal": 6,
        "first_difference": None,
    }


def test_tokens_behind_a_difference_do_not_count() -> None:
    verdict = Verdict(comparisons=(compare(7, 8, 9), compare(7, 5, 9), compare(1)))
    assert not verdict.is_equal
    assert str(verdict) == "prompts 1/3 equal, tokens 4/9 equal"
    assert verdict.as_json()["first_difference"] == {
        "prompt": "a",
        "prompt_tokens": 2,
        "position": 1,
        "expected": 8,
        "found": 5,
        "error": "",
    }


@pytest.mark.parametrize(
    ("found", "position", "expected", "came"),
    [((7, 8), 2, 9, None), ((7, 8, 9, 1), 3, None, 1), ((), 0, 7, None)],
)
def test_too_few_and_too_many_tokens_differ(
    found: tuple[int, ...], position: int, expected: int | None, came: int | None
) -> None:
    item = compare(*found, error="PEER_GONE")
    assert not item.is_equal
    difference = item.difference()
    assert (difference["position"], difference["expected"]) == (position, expected)
    assert (difference["found"], difference["error"]) == (came, "PEER_GONE")
