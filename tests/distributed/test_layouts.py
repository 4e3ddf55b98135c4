"""Whole engines in every kind of layout: golden tokens, equal logs, and ranks that are lost."""

import json
import re
from pathlib import Path

import pytest

from engine.parallel.layout import parse_layout
from engine.parallel.worker import run_group
from tests.fakes.models import GOLDEN, golden

RANKS = Path(__file__).parent / "ranks"
MODEL = GOLDEN / "v4_base"
TOKENS = 6


def prompts_of(model, most):
    """Short golden prompts and one of several chunks, with their continuations."""
    cases = sorted(golden(model)["prompts"], key=lambda case: len(case["input_ids"]))
    longer = [case for case in cases if 100 < len(case["input_ids"]) <= 300]
    chosen = cases[: most - 1] + longer[:1]
    return [case["input_ids"] for case in chosen], [case["greedy"][:TOKENS] for case in chosen]


def serve(
    layout, tmp_path, monkeypatch, *, entry="serve", model=MODEL, backend="shm", most=6, **options
):
    """Serves golden prompts in a layout; returns what every rank wrote, tokens checked."""
    monkeypatch.syspath_prepend(RANKS)
    run = parse_layout(layout)
    prompts, expected = prompts_of(model, most)
    given = {
        "model": str(model),
        "layout": layout,
        "out": str(tmp_path),
        "prompts": json.dumps(prompts),
        "tokens": TOKENS,
        **options,
    }
    assert run_group(f"layout_ranks:{entry}", run.layout.world_size, given, backend=backend) == 0
    ranks = [
        json.loads((tmp_path / f"layout-{rank}.json").read_text())
        for rank in range(run.layout.world_size)
    ]
    engines = run.layout.num_engines
    for engine in range(engines):
        found = ranks[engine * run.engine_size]["tokens"]
        assert found == expected[engine::engines], f"engine {engine} of {layout}"
    check_digests(run, ranks)
    return ranks


def check_digests(run, ranks):
    """All members of a channel have the same log."""
    for rank in range(len(ranks)):
        for channel in run.layout.channels(rank, has_domain=not run.all_to_all):
            logs = {ranks[member]["digests"].get(channel.purpose) for member in channel.members}
            assert len(logs) == 1, (rank, channel.purpose)


@pytest.mark.medium
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "layout",
    [
        "dp=1,cp=2,ep=2",
        "dp=2,cp=2,ep=4",
        "dp=2,cp=2,ep=2",
        "dp=1,attn_tp=2,path=b",
        "dp=2,ep=4,attn_tp=2,path=b",
        "dp=2,ep=4,attn_tp=2,path=a",
        "dp=2,ep=2,attn_tp=2,path=a",
        "dp=1,attn_tp=2,path=a",
        "dp=2,path=a",
        "dp=1,ep=1,enp=2",
    ],
)
def test_golden_tokens_in_every_kind_of_layout(layout, tmp_path, monkeypatch):
    serve(layout, tmp_path, monkeypatch)


@pytest.mark.medium
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "layout",
    [
        "dp=2,cp=2,ep=4",
        "dp=2,attn_tp=2,path=b",
        "dp=2,attn_tp=2,path=a",
        "dp=3,path=a",
        "attn_tp=2,path=a",
    ],
)
def test_every_step_of_every_rank_makes_the_predicted_collectives(layout, tmp_path, monkeypatch):
    """Leaders and followers, with rows and without: three prompts leave engines idle at the end."""
    ranks = serve(layout, tmp_path, monkeypatch, entry="check_ledger", most=3)
    steps = {int((tmp_path / f"checked-{rank}").read_text()) for rank in range(len(ranks))}
    assert len(steps) == 1
    assert steps.pop() > TOKENS


@pytest.mark.medium
@pytest.mark.timeout(120)
@pytest.mark.parametrize("layout", ["dp=1,cp=2,ep=2", "dp=1,attn_tp=2,path=b"])
def test_golden_tokens_over_gloo(layout, tmp_path, monkeypatch):
    serve(layout, tmp_path, monkeypatch, backend="gloo", most=4)


@pytest.mark.medium
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "layout", ["dp=2,cp=2,ep=4", "dp=1,attn_tp=2,path=b", "dp=2,attn_tp=1,path=a"]
)
def test_golden_tokens_while_redundant_experts_move(layout, tmp_path, monkeypatch):
    serve(layout, tmp_path, monkeypatch, min_redundant=2, rebalance_interval_steps=5)


@pytest.mark.medium
@pytest.mark.timeout(120)
@pytest.mark.parametrize("layout", ["dp=1,cp=2,ep=2", "dp=2,attn_tp=2,path=a"])
def test_golden_tokens_with_late_scheduling(layout, tmp_path, monkeypatch):
    serve(layout, tmp_path, monkeypatch, late=True)


@pytest.mark.medium
@pytest.mark.timeout(120)
def test_engines_without_prompts_serve_their_peers(tmp_path, monkeypatch):
    """One prompt on four engines of two ranks: placeholders reach followers too."""
    ranks = serve("dp=4,cp=2,ep=8", tmp_path, monkeypatch, most=2)
    counts = ranks[0]["counts"]
    for rank in ranks:
        assert rank["counts"]["experts/dispatch"] == counts["experts/dispatch"]
        assert rank["counts"]["sequence/all_gather"] == counts["sequence/all_gather"]


@pytest.mark.medium
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("layout", "late"), [("dp=2,cp=2,ep=4", True), ("dp=2,attn_tp=2,path=a", False)]
)
def test_chaos_leaves_equal_memory_on_all_ranks_of_an_engine(layout, late, tmp_path, monkeypatch):
    check_chaos(layout, 110, tmp_path, monkeypatch, late=late)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "layout", ["dp=2,cp=2,ep=4", "dp=2,attn_tp=2,path=b", "dp=2,attn_tp=2,path=a"]
)
def test_chaos_of_5000_steps_leaves_equal_memory(layout, tmp_path, monkeypatch):
    check_chaos(layout, 5000, tmp_path, monkeypatch, late=True)


def check_chaos(layout, steps, tmp_path, monkeypatch, *, late):
    """Preempted, resumed and given-up sequences on ranks that share an engine's rows or heads."""
    monkeypatch.syspath_prepend(RANKS)
    run = parse_layout(layout)
    given = {
        # Blocks of 32 tokens, so that sequences grow from page to page.
        "model": str(GOLDEN / "v4_hca8"),
        "layout": layout,
        "out": str(tmp_path),
        "steps": steps,
        "seed": 11,
        "late": late,
    }
    assert run_group("layout_ranks:chaos", run.layout.world_size, given) == 0
    ranks = [
        json.loads((tmp_path / f"chaos-{rank}.json").read_text())
        for rank in range(run.layout.world_size)
    ]
    for engine in range(run.layout.num_engines):
        first = engine * run.engine_size
        members = ranks[first : first + run.engine_size]
        # Images that were swapped in, emptied slots and dropped rows reached every member.
        assert len({member["memory"] for member in members}) == 1
        assert members[0]["placeholders"] > 0
    check_digests(run, ranks)
    assert all(rank["preemptions"] > 0 for rank in ranks[:: run.engine_size])
    assert sum(rank["requests"] for rank in ranks) > steps / 20


@pytest.mark.medium
@pytest.mark.timeout(90)
@pytest.mark.parametrize("how", ["dies", "stops"])
def test_a_follower_that_is_lost_is_named_by_every_rank(how, tmp_path, monkeypatch):
    """By its leader and the other engine with its follower, within the time-out of a collective."""
    monkeypatch.syspath_prepend(RANKS)
    prompts, _ = prompts_of(MODEL, 2)
    lost = 3
    options = {
        "model": str(MODEL),
        "layout": "dp=2,cp=2,ep=4",
        "out": str(tmp_path),
        "prompts": json.dumps(prompts),
        "tokens": TOKENS,
        "lost": lost,
        # The step begins, a slot is emptied, the step runs: its collectives miss one rank.
        "calls": 3,
        "how": how,
    }
    code = run_group("layout_ranks:lose_follower", 4, options, collective_timeout_s=2.0)
    assert code == (1 if how == "dies" else 0)
    texts = [(tmp_path / f"error-{rank}").read_text() for rank in range(lost)]
    assert all(f"rank {lost}" in text or f"late ranks: {lost}" in text for text in texts), texts
    # Leaders and followers tell the same step, and the vote it followed from.
    places = {re.search(r"step 1, kind prefill, last vote \[1, [^]]*\]", text) for text in texts}
    assert None not in places
    assert len({place[0] for place in places if place}) == 1
    if how == "stops":
        assert any("timed out after 2 s; late ranks: 3" in text for text in texts)
