"""Wide expert parallelism: one expert or less a rank, all cases at once, every token equal."""

import json
import logging
from pathlib import Path

import pytest

from engine.parallel.worker import run_group
from tests.fakes.models import TINY

logger = logging.getLogger(__name__)

RANKS = Path(__file__).parent / "ranks"
MEMORY_BOUND_BYTES = 14 << 30


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num_ranks", [16, 64])
def test_one_expert_a_rank_or_less_gives_the_golden_tokens(num_ranks, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(RANKS)
    cases = json.loads((TINY / "golden.json").read_text())["cases"]
    # The longest first, so that few ranks have them too.
    cases.sort(key=lambda case: len(case["input_ids"]), reverse=True)
    mine = [cases[rank % len(cases)] for rank in range(num_ranks)]
    steps = len(cases[0]["greedy_ids"])
    options = {
        "model": str(TINY),
        "out": str(tmp_path),
        "steps": steps,
        "max_num_batched_tokens": 512,
        "prompts": json.dumps([[case["input_ids"]] for case in mine]),
    }

    code = run_group(
        "engine_ranks:run",
        num_ranks,
        options,
        group_name=f"ep{num_ranks}",
        collective_timeout_s=120.0,
    )

    assert code == 0
    ranks = [
        json.loads((tmp_path / f"ledger-{rank}.json").read_text()) for rank in range(num_ranks)
    ]
    for case, rank in zip(mine, ranks, strict=True):
        assert rank["tokens"] == [case["greedy_ids"]]
        assert rank["digests"] == ranks[0]["digests"]
    memory = sum(rank["pss_bytes"] for rank in ranks)
    logger.info("%d ranks: %d steps, %.2f GiB in all", num_ranks, ranks[0]["steps"], memory / 2**30)
    assert memory < MEMORY_BOUND_BYTES
