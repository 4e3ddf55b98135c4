"""Context parallelism changes no bit: logits, exported KV and state equal those of one rank.

The ranks are threads with real models; every step is run by one rank alone as well, and all bytes
of all sequences are compared on every rank after every step.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.plan import StepKind
from tests.fakes.context import ContextRanks, Sequences, context_ranks
from tests.fakes.models import GOLDEN, TINY, load

HCA8, BASE, QUANT = (GOLDEN / name for name in ("v4_hca8", "v4_base", "v4_quant"))
NUM_SEQUENCES = 3


def check(
    directory: Path,
    cp: int,
    steps: list[tuple[StepKind, list[int]]],
    *,
    kv_quantisers: str = "off",
    seed: int = 0,
) -> ContextRanks:
    """Runs steps on the context ranks and on one rank, and compares every bit."""
    one = load(directory, kv_quantisers)
    ranks = context_ranks(directory, cp, kv_quantisers)
    ranks.clear()
    alone = one.runner()
    vocab = one.layout.config.vocab_size
    generator = torch.Generator().manual_seed(seed)
    total = sum(sum(counts) for _, counts in steps)
    tokens = torch.randint(3, vocab, (NUM_SEQUENCES, max(total, 1)), generator=generator).tolist()
    sequences = Sequences(tokens, one.layout.block_tokens)
    for kind, counts in steps:
        plan = sequences.plan(counts, kind)
        expected = alone.run(plan)
        images = sequences.images(alone)
        for result, runner in zip(ranks.run(plan), ranks.runners, strict=True):
            assert torch.equal(result.logits, expected.logits)
            assert sequences.images(runner) == images
        assert all(log == ranks.logs[0] for log in ranks.logs)
    return ranks


COUNT = st.sampled_from((0, 0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 40, 63))
STEP = st.one_of(
    st.tuples(
        st.just(StepKind.PREFILL),
        st.lists(COUNT, min_size=NUM_SEQUENCES, max_size=NUM_SEQUENCES).filter(any),
    ),
    st.tuples(
        st.just(StepKind.DECODE),
        st.lists(st.integers(0, 1), min_size=NUM_SEQUENCES, max_size=NUM_SEQUENCES).filter(any),
    ),
)


@pytest.mark.medium
@settings(max_examples=12)
@given(
    cp=st.sampled_from((2, 4)), steps=st.lists(STEP, min_size=1, max_size=4), seed=st.integers(0, 9)
)
def test_any_steps_equal_those_of_one_rank(
    cp: int, steps: list[tuple[StepKind, list[int]]], seed: int
) -> None:
    check(HCA8, cp, steps, seed=seed)


P, D = StepKind.PREFILL, StepKind.DECODE
CASES = {
    "one long prompt": [(P, [129, 0, 0]), (D, [1, 0, 0])],
    "several prompts": [(P, [65, 33, 70]), (D, [1, 1, 1]), (D, [0, 1, 1])],
    "short ones stay whole": [(P, [5, 3, 9]), (D, [1, 1, 1])],
    "short and long": [(P, [3, 100, 1]), (P, [50, 1, 7]), (D, [1, 1, 1])],
    "one token": [(P, [1, 0, 0]), (P, [1, 1, 0]), (P, [1, 1, 1]), (D, [1, 1, 1])],
    "chunks": [(P, [40, 16, 0]), (P, [40, 0, 24]), (P, [9, 0, 0]), (D, [1, 1, 1])],
    "nothing sampled": [(P, [0, 80, 0]), (D, [0, 1, 0])],
}


@pytest.mark.medium
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("directory", [HCA8, BASE, TINY], ids=lambda path: path.name)
def test_cases(directory: Path, cp: int, name: str) -> None:
    check(directory, cp, CASES[name])
