"""The ledger of a real engine with dp = ep = 2 is the predicted one, step by step."""

import json
from pathlib import Path

import pytest

from engine.model.config import ModelConfig
from engine.parallel.worker import run_group
from tests.fakes.models import GOLDEN, golden

RANKS = Path(__file__).parent / "ranks"
MODEL = GOLDEN / "v4_base"
# Blocks of 32 tokens, so that sequences grow from page to page.
SMALL_BLOCKS = GOLDEN / "v4_hca8"
STEPS = 6


@pytest.mark.medium
@pytest.mark.timeout(90)
@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_every_step_makes_the_predicted_collectives(backend, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(RANKS)
    cases = [p for p in golden(MODEL)["prompts"] if len(p["input_ids"]) <= 300]
    # The second rank has less to do, so that it runs placeholders.
    mine = [cases[:3], cases[1:2]]
    options = {
        "model": str(MODEL),
        "out": str(tmp_path),
        "steps": STEPS,
        "prompts": json.dumps([[case["input_ids"] for case in own] for own in mine]),
    }

    assert run_group("engine_ranks:run", 2, options, backend=backend) == 0

    ranks = [json.loads((tmp_path / f"ledger-{rank}.json").read_text()) for rank in range(2)]
    num_layers = ModelConfig.load(MODEL).num_layers
    for own, rank in zip(mine, ranks, strict=True):
        assert rank["tokens"] == [case["greedy"][:STEPS] for case in own]
        # Every prompt token and every token but the last is computed once.
        assert rank["rows"] == sum(len(case["input_ids"]) + STEPS - 1 for case in own)
        assert rank["counts"]["experts/dispatch"] == num_layers * rank["steps"]
        assert rank["counts"]["experts/combine"] == num_layers * rank["steps"]
    one, other = ranks
    assert one["digests"] == other["digests"]
    assert one["counts"] == other["counts"]
    assert one["rows"] > other["rows"]


@pytest.mark.medium
@pytest.mark.timeout(90)
@pytest.mark.parametrize("late", [False, True])
def test_chaos_leaves_equal_channel_logs(late, tmp_path, monkeypatch):
    check_chaos(3, 150, tmp_path, monkeypatch, late=late)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("late", [False, True])
def test_chaos_of_5000_steps_leaves_equal_channel_logs(late, tmp_path, monkeypatch):
    check_chaos(4, 5000, tmp_path, monkeypatch, late=late)


def check_chaos(num_ranks, steps, tmp_path, monkeypatch, *, late):
    monkeypatch.syspath_prepend(RANKS)
    options = {
        "model": str(SMALL_BLOCKS),
        "out": str(tmp_path),
        "steps": steps,
        "seed": 7,
        "late_scheduling": late,
    }

    assert run_group("engine_ranks:chaos", num_ranks, options, collective_timeout_s=20.0) == 0

    ranks = [json.loads((tmp_path / f"chaos-{r}.json").read_text()) for r in range(num_ranks)]
    assert all(rank["stopped"] for rank in ranks)
    # The log of every channel is the same on all members, whatever happened on one of them.
    for rank in ranks[1:]:
        assert rank["digests"] == ranks[0]["digests"]
        assert rank["counts"] == ranks[0]["counts"]
        assert rank["busy"] == ranks[0]["busy"]
    # And something did happen: idle ranks, full pools.
    assert all(rank["placeholders"] > 0 for rank in ranks)
    assert sum(rank["preemptions"] for rank in ranks) > 0
    assert sum(rank["requests"] for rank in ranks) > steps / 10
