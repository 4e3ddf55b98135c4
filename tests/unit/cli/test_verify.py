"""`disagg verify`: comparison over gRPC against scripted members, exit codes, output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import cli.verify
from cli.local import launcher
from cli.local.figures import Moves
from cli.local.launcher import StartLate
from cli.main import main
from runtime.errors import Unavailable
from tests.fakes.front_door import FrontDoor, front_door
from tests.fakes.members import Script, answer
from tests.fakes.systems import FakeSystem, install

pytestmark = pytest.mark.medium
MODEL = Path(__file__).parents[3] / "models" / "tiny-v4"
PROMPTS = [[0, 300, 301], [0, 302], [5]]


def golden(tmp_path: Path, *, wrong: int | None = None, **fields: object) -> str:
    """A golden file that the scripted members meet, except for one token of one prompt."""
    cases = [
        {"name": f"case {n}", "input_ids": ids, "greedy_ids": answer(ids, 8)}
        for n, ids in enumerate(PROMPTS)
    ]
    if wrong is not None:
        cases[wrong]["greedy_ids"][4] += 1  # type: ignore[index]
    path = tmp_path / "golden.json"
    path.write_text(json.dumps({"cases": cases, **fields}))
    return str(path)


async def verify(
    door: FrontDoor, monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, FakeSystem]:
    system = install(monkeypatch, FakeSystem(address=door.balancer.host.address))
    code = await asyncio.to_thread(main, ["verify", *arguments, "--model", str(MODEL)])
    return code, system


async def test_equal_answers_exit_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with front_door(decodes=2) as door:
        code, system = await verify(door, monkeypatch, golden(tmp_path), "--decode-ranks", "4")
        assert code == 0
        assert capsys.readouterr().out == "prompts 3/3 equal, tokens 24/24 equal\n"
        assert system.topologies[0].decode_ranks == 4
        assert system.topologies[0].kv_quantisers == "off"
        sent = door.prefills[0].calls[0].sampling
        assert (sent.temperature, sent.ignore_eos, sent.max_tokens) == (0.0, True, 8)


async def test_a_different_token_exits_1_and_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with front_door() as door:
        path = golden(tmp_path, wrong=1, kv_quantisers="on")
        code, system = await verify(door, monkeypatch, path, "--json", "--concurrency", "1")
    assert code == 1
    assert system.topologies[0].kv_quantisers == "on"
    captured = capsys.readouterr()
    value = json.loads(captured.out.splitlines()[-1])
    assert (value["prompts"], value["prompts_equal"]) == (3, 2)
    assert (value["tokens"], value["tokens_equal"]) == (24, 20)
    assert value["first_difference"]["prompt"] == "case 1"
    assert value["first_difference"]["position"] == 4
    assert "moves" not in value
    assert "differs: case 1 (2 tokens) at generated token 4: expected" in captured.err


async def test_moves_of_experts_are_told_where_they_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = [Moves("prefill", 0, 0), Moves("decode", 2, 31)]
    monkeypatch.setattr(cli.verify, "expert_moves", lambda address: told)
    async with front_door() as door:
        rebalancing = ("--rebalance-after", "8", "--json")
        code, _ = await verify(door, monkeypatch, golden(tmp_path), *rebalancing)
    assert code == 0
    captured = capsys.readouterr()
    value = json.loads(captured.out.splitlines()[-1])
    assert (value["moves"], value["changed_slots"], value["prompts_equal"]) == (2, 31, 3)
    assert "prefill: experts never moved, the run had too few steps" in captured.err
    assert "decode: experts moved 2 times, 31 slots got another expert" in captured.err


async def test_a_failed_request_counts_as_different(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {"prefill_retries": 0, "suspect_s": 0.0}
    async with front_door(limits=limits) as door:
        door.prefills[0].scripts.append(Script(error=Unavailable("gone", reason=None)))
        door.prefills[0].scripts.extend(Script(error=Unavailable("gone")) for _ in range(12))
        code, _ = await verify(door, monkeypatch, golden(tmp_path))
    assert code == 1
    captured = capsys.readouterr()
    assert captured.out == "prompts 0/3 equal, tokens 0/24 equal\n"
    assert "PEER_GONE" in captured.err


async def test_repeated_attempts_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with front_door(limits={"suspect_s": 0.0}) as door:
        door.decodes[0].scripts.append(Script(error=Unavailable("gone"), after_tokens=2))
        code, _ = await verify(door, monkeypatch, golden(tmp_path))
    assert code == 0
    assert "1 prompt needed more than one attempt" in capsys.readouterr().err


async def test_time_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with front_door() as door:
        door.decodes[0].scripts.extend(Script(hang=True) for _ in range(3))
        code, system = await verify(door, monkeypatch, golden(tmp_path), "--timeout", "0.2")
    assert code == 1
    captured = capsys.readouterr()
    assert "DEADLINE" in captured.err
    assert "prompts 0/3 equal" in captured.out
    assert system.is_stopped


def test_a_start_that_takes_too_long_is_a_failed_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def running_system(topology: object, *, start_timeout_s: float) -> Iterator[None]:
        assert start_timeout_s == 1.0
        raise StartLate("the members are not ready\n  | log")
        yield

    monkeypatch.setattr(launcher, "running_system", running_system)
    arguments = ["verify", golden(tmp_path), "--model", str(MODEL), "--timeout", "1"]
    assert main(arguments) == 1
    assert capsys.readouterr().err == (
        "disagg verify: the system was not ready after 1 s; allow more with --timeout\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--timeout", "0"], "--timeout 0"),
        (["--monolith", "--decode-ranks", "2"], "leave out --decode-ranks"),
        (["--monolith", "--decode-layout", "dp=2"], "give their layout with --prefill-layout"),
        (["--monolith", "--prefill-layout", "cp=3,ep=2"], "V2: ep 2 does not divide"),
        (["--draft", "on"], "--draft off"),
        (["--redundant", "-2"], "--redundant -2"),
        (["--rebalance-after", "0"], "--rebalance-after 0: give 1 step"),
        (["--monolith", "--redundant", "385"], "SLOTS: min_redundant 385 is more than the"),
        (["--decode-layout", "dp=4,cp=2,ep=8"], "V6: cp 2 with a decode engine"),
    ],
)
def test_what_there_is_not_exits_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", golden(tmp_path), "--model", str(MODEL), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_model_is_beside_the_golden_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", golden(tmp_path)]) == 2
    assert f"--model {tmp_path}: there is no config.json" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "some"])
def test_concurrency_is_a_count_or_all(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["verify", "g.json", "--concurrency", value])
    assert caught.value.code == 2
    assert "neither a positive number nor `all`" in capsys.readouterr().err


def test_the_monolith_says_what_is_wrong_with_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["verify", golden(tmp_path), "--monolith"]) == 2
    assert str(tmp_path) in capsys.readouterr().err
