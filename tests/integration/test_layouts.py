"""The whole system with engines of several ranks: golden tokens, one member an engine, clean ends.

The wide layouts are slow: up to 64 rank processes share this machine.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from cli.main import main
from client import AsyncClient, Sampling
from tests.fakes.holdings import nothing_is_held
from tests.fakes.processes import ROOT
from tests.fakes.systems import launched

MODEL = ROOT / "models" / "tiny-v4"
GOLDEN = json.loads((MODEL / "golden.json").read_text(encoding="utf-8"))["cases"]


async def ask(address: str, number: int) -> list[int]:
    """Tokens of one golden prompt."""
    case, found = GOLDEN[number], []
    sampling = Sampling(temperature=0.0, max_tokens=len(case["greedy_ids"]), ignore_eos=True)
    async with AsyncClient(address, timeout_s=120.0) as client:
        async for chunk in client.stream(
            case["input_ids"], request_id=f"layout-{number}", sampling=sampling
        ):
            found.extend(chunk.token_ids)
    return found


@pytest.mark.medium
@pytest.mark.timeout(200)
async def test_leaders_serve_and_followers_end_with_them() -> None:
    numbers = range(4)
    with launched(
        prefill_ranks=2,
        prefill_layout="dp=1,cp=2,ep=2",
        decode_ranks=4,
        decode_layout="dp=2,attn_tp=2,ep=4,path=b",
    ) as system:
        members = [
            (row.role, row.name) for row in system.rows() if row.role in ("prefill", "decode")
        ]
        # One member an engine, numbered as engines.
        assert sorted(role for role, _ in members) == ["decode", "decode", "prefill"]
        assert sorted(name.rsplit("-", 1)[0] for _, name in members) == [
            "decode-0-r0",
            "decode-0-r1",
            "prefill-0-r0",
        ]
        found = await asyncio.gather(*(ask(system.address, number) for number in numbers))
        assert found == [GOLDEN[number]["greedy_ids"] for number in numbers]
        await nothing_is_held(system)
        logs = {child.name: child.log for child in system.children}
        children = list(system.children)
        events = {
            name: [json.loads(line) for line in log.read_text().splitlines() if line[:1] == "{"]
            for name, log in logs.items()
        }
        following = [
            (entry["rank"], entry["leader"])
            for entry in events["decode"]
            if entry["event"] == "rank.following"
        ]
        assert sorted(following) == [(1, 0), (3, 2)]
    # Drained: everybody ended well, followers too.
    assert [child.exit_code for child in children] == [0, 0, 0]


def verify(*arguments: str) -> None:
    """Every prompt of the golden file, all at once, through the command."""
    golden = str(MODEL / "golden.json")
    assert main(["verify", golden, "--timeout", "1200", *arguments]) == 0


WIDE = ["dp=8,ep=8", "dp=4,cp=2,ep=8", "dp=2,cp=4,ep=8"]
SHARED = ["dp=4,ep=8,attn_tp=2,path=b", "dp=4,ep=8,attn_tp=2,path=a"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("layout", [*WIDE, *SHARED])
def test_the_monolith_in_wide_layouts_gives_every_golden_token(layout: str) -> None:
    verify("--monolith", "--prefill-layout", layout)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (WIDE[0], WIDE[0]),
        (WIDE[1], SHARED[0]),
        (WIDE[2], SHARED[1]),
    ],
)
def test_wide_layouts_on_both_sides_give_every_golden_token(prefill: str, decode: str) -> None:
    verify("--prefill-layout", prefill, "--decode-layout", decode)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_64_decode_ranks_as_services_give_every_golden_token() -> None:
    """A slot of an expert on each; every rank a member with a server of its own."""
    verify("--decode-layout", "dp=64,ep=64")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_experts_that_move_in_the_middle_change_no_token() -> None:
    verify(
        *("--prefill-layout", WIDE[1], "--decode-layout", "dp=2,ep=4,attn_tp=2,path=a"),
        *("--redundant", "3", "--rebalance-after", "20"),
    )
