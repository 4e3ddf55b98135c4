"""The ledger of a real engine with dp = ep = 2 is the predicted one, step by step."""

import json
from pathlib import Path

import pytest

from engine.model.config import ModelConfig
from engine.parallel.worker import run_group
from tests.fakes.models import GOLDEN, golden

RANKS = Path(__file__).parent / "ranks"
MODEL = GOLDEN / "v4_base"
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
