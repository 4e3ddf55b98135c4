"""Context parallelism between processes: every rank has the bits of an engine of one rank."""

import json
from pathlib import Path

import numpy as np
import pytest

from engine.model.sizing.catalog import read_config
from engine.model.sizing.sizes import ModelSizes
from engine.parallel.layout import Layout
from engine.parallel.ledger import StepShape, predict_step
from engine.parallel.worker import run_group
from tests.distributed.ranks import context_ranks
from tests.fakes.models import GOLDEN, load

RANKS = Path(__file__).parent / "ranks"
MODEL = GOLDEN / "v4_hca8"
# Kind, then new tokens of the two sequences of each engine. Where an engine has none, its ranks
# run the placeholder of the kind.
STEPS = [
    ("prefill", [[70, 5], [0, 0]]),
    ("prefill", [[0, 40], [33, 1]]),
    ("decode", [[1, 1], [1, 0]]),
    ("prefill", [[0, 0], [17, 60]]),
    ("decode", [[0, 0], [1, 1]]),
    ("decode", [[1, 1], [1, 1]]),
]


def predicted_gathers(num_ranks: int, cp: int) -> int:
    """What the ledger says of the context channel, over all steps."""
    model = ModelSizes.from_config(read_config(str(MODEL))).step_model()
    layout = Layout(dp=num_ranks // cp, cp=cp, ep=num_ranks)
    return sum(
        line.count
        for kind, _ in STEPS
        for line in predict_step(layout, model, StepShape(tokens=8, is_prefill=kind == "prefill"))
        if line.channel == "sequence"
    )


@pytest.mark.medium
@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("backend", "num_ranks", "cp"), [("gloo", 2, 2), ("shm", 2, 2), ("gloo", 4, 2), ("shm", 4, 4)]
)
def test_bits_are_those_of_one_rank(backend, num_ranks, cp, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(RANKS)
    options = {"model": str(MODEL), "out": str(tmp_path), "cp": cp, "steps": json.dumps(STEPS)}

    assert run_group("context_ranks:run", num_ranks, options, backend=backend) == 0

    one = load(MODEL)
    config = one.layout.config
    prefills = sum(kind == "prefill" for kind, _ in STEPS)
    sources = sum(layer.owns_kv for layer in config.layers)
    gathers = prefills * (config.num_layers + sources + 1)
    gathers += (len(STEPS) - prefills) * config.num_layers
    assert gathers == predicted_gathers(num_ranks, cp)
    for rank in range(num_ranks):
        plans = context_ranks.steps_of(
            options, rank // cp, one.layout.block_tokens, config.vocab_size
        )
        expected = context_ranks.record(one.runner(), plans)
        with np.load(tmp_path / f"found-{rank}.npz", allow_pickle=False) as arrays:
            found = dict(arrays)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=f"rank {rank}: {name}")
        counts = json.loads((tmp_path / f"counts-{rank}.json").read_text())
        assert counts == {
            "sequence/all_gather": gathers,
            "experts/dispatch": len(STEPS) * config.num_layers,
            "experts/combine": len(STEPS) * config.num_layers,
        }
