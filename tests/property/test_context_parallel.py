"""Context parallelism changes no bit: logits, exported KV and state equal those of one rank.

The ranks are threads with real models; every step is run by one rank alone as well, and all bytes
of all sequences are compared on every rank after every step.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.input_batch import InputBuilder
from engine.model.context import Restoring
from engine.plan import SequenceStep, StepKind, StepPlan, placeholder_plan
from engine.step_inputs import StepInputs
from tests.fakes.context import ContextRanks, Sequences, context_ranks
from tests.fakes.models import GOLDEN, TINY, Solo, load

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
@settings(max_examples=10)
@given(
    cp=st.sampled_from((2, 4)), steps=st.lists(STEP, min_size=1, max_size=4), seed=st.integers(0, 9)
)
def test_any_steps_equal_those_of_one_rank(
    cp: int, steps: list[tuple[StepKind, list[int]]], seed: int
) -> None:
    check(HCA8, cp, steps, seed=seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=150)
@given(
    directory=st.sampled_from((HCA8, BASE, QUANT, TINY)),
    cp=st.sampled_from((2, 3, 4, 8)),
    kv_quantisers=st.sampled_from(("off", "on")),
    steps=st.lists(STEP, min_size=1, max_size=7),
    seed=st.integers(0, 99),
)
def test_any_steps_equal_those_of_one_rank_long(
    directory: Path,
    cp: int,
    kv_quantisers: str,
    steps: list[tuple[StepKind, list[int]]],
    seed: int,
) -> None:
    check(directory, cp, steps, kv_quantisers=kv_quantisers, seed=seed)


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
@pytest.mark.parametrize("directory", [HCA8, TINY], ids=lambda path: path.name)
def test_cases(directory: Path, cp: int, name: str) -> None:
    check(directory, cp, CASES[name])


@pytest.mark.medium
@pytest.mark.parametrize("kv_quantisers", ["off", "on"])
def test_a_prompt_longer_than_the_indexer_keeps(kv_quantisers: str) -> None:
    """Selections are made, on each rank for its rows alone."""
    assert load(TINY).layout.config.index_topk < 700 // 4
    steps = [(P, [700, 0, 20]), (P, [333, 0, 0]), (D, [1, 0, 1])]
    check(TINY, 4, steps, kv_quantisers=kv_quantisers)


@pytest.mark.medium
@pytest.mark.parametrize("directory", [BASE, QUANT], ids=lambda path: path.name)
def test_other_models(directory: Path) -> None:
    check(directory, 2, [(P, [70, 9, 33]), (D, [1, 1, 1])])


@pytest.mark.medium
def test_every_row_is_dispatched_and_counted_once_and_padding_never() -> None:
    """Rows of all ranks together are those of one rank, bit by bit and layer by layer."""
    steps = [(P, [37, 3, 50]), (P, [1, 1, 1]), (D, [1, 1, 0])]
    one = check(HCA8, 1, steps)
    loads = one.loads[0].counts()[-len(steps) :]
    top_k = one.layout.config.num_experts_per_tok
    assert (loads.sum(2) == [[count * top_k] for count in (90, 3, 2)]).all()
    for cp in (2, 4):
        ranks = check(HCA8, cp, steps)
        counted = [window.counts()[-len(steps) :] for window in ranks.loads]
        assert np.array_equal(np.sum(counted, axis=0), loads)
        for call, expected in enumerate(one.dispatchers[0].rows):
            sent = [dispatcher.rows[call] for dispatcher in ranks.dispatchers]
            assert sorted(torch.cat(sent).tolist()) == sorted(expected.tolist())


@pytest.mark.medium
@pytest.mark.parametrize("kind", [P, D])
def test_a_placeholder_makes_the_collectives_of_its_kind_without_rows(kind: StepKind) -> None:
    ranks = check(HCA8, 2, [(P, [40, 0, 0]), (kind, [1, 0, 0])])
    images = [runner.export_image((1, 4), 1, 41) for runner in ranks.runners]
    layers = ranks.layout.config.layers
    expected = len(layers)
    if kind is P:
        # Windows, raw rows where KV is compressed, and what is sampled.
        expected += sum(layer.owns_kv for layer in layers) + 1
    assert [operation for operation, _ in ranks.logs[0]] == ["all_gather"] * expected
    for dispatcher in ranks.dispatchers:
        dispatcher.rows.clear()
    results = ranks.run(placeholder_plan(kind, 7))
    assert [result.logits.shape[0] for result in results] == [0, 0]
    for log, dispatcher in zip(ranks.logs, ranks.dispatchers, strict=True):
        assert log == [("all_gather", 0)] * expected
        assert [len(sent) for sent in dispatcher.rows] == [0] * len(layers)
    assert [runner.export_image((1, 4), 1, 41) for runner in ranks.runners] == images


@pytest.mark.medium
def test_without_the_reverse_index_kv_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests compare would notice rows that were stored in the order of the ranks."""

    def in_rank_order(self: Restoring) -> torch.Tensor:
        if self._pending is None or self._reverse is None:
            return self._rows
        return self._pending.wait().index_select(0, self._reverse.sort().values)

    monkeypatch.setattr(Restoring, "wait", in_rank_order)
    with pytest.raises(AssertionError):
        check(HCA8, 2, [(P, [40, 0, 0])])


@pytest.mark.medium
def test_routed_padding_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    build = InputBuilder.build

    def all_rows_are_tokens(self: InputBuilder, plan: StepPlan) -> StepInputs:
        inputs = build(self, plan)
        inputs.num_tokens = inputs.num_rows
        return inputs

    steps = [(P, [37, 3, 50])]
    before = sum(len(rows) for one in check(HCA8, 4, steps).dispatchers for rows in one.rows)
    monkeypatch.setattr(InputBuilder, "build", all_rows_are_tokens)
    after = sum(len(rows) for one in check(HCA8, 4, steps).dispatchers for rows in one.rows)
    assert before == 90 * load(HCA8).layout.config.num_layers < after


@pytest.mark.medium
@pytest.mark.parametrize("cp", [2, 4])
def test_an_imported_prefix_is_gone_on_from(cp: int) -> None:
    """One rank's image goes to all context ranks; what follows is equal."""
    solo = Solo(load(HCA8))
    prompt = [(7 * i * i + 5) % 250 + 3 for i in range(120)]
    solo.feed(prompt[:45])
    image = solo.image()
    ranks = context_ranks(HCA8, cp)
    ranks.clear()
    for runner in ranks.runners:
        runner.reset_slot(1)
        runner.import_image(image, solo.table(45), 1)
    step = SequenceStep(
        request_id="a",
        token_ids=tuple(prompt[45:]),
        start=45,
        block_table=solo.table(120),
        state_slot=1,
        sample=True,
    )
    plan = StepPlan(kind=P, step=0, sequences=(step,), is_placeholder=False)
    expected = solo.feed(prompt[45:])
    for result in ranks.run(plan):
        assert torch.equal(result.logits[0], expected)
    for runner in ranks.runners:
        assert runner.export_image(solo.table(120), 1, 120) == solo.image()


@pytest.mark.medium
@pytest.mark.parametrize("chunk", [7, 16, 200])
def test_a_replay_is_shared_by_context_ranks(chunk: int) -> None:
    """Blocks of one rank without the state behind them: all ranks rebuild its bits together."""
    model = load(HCA8)
    prompt = [(7 * i * i + 5) % 250 + 3 for i in range(120)]
    solo = Solo(model)
    solo.feed(prompt[:96])
    begin = 96 - model.layout.window_replay_tokens
    image = dataclasses.replace(solo.image(), state=b"", replay_from=begin)
    ranks = context_ranks(HCA8, 2)
    ranks.clear()
    for runner in ranks.runners:
        runner.import_image(image, solo.table(96), 1)
    for start in range(begin, 120, chunk):
        step = SequenceStep(
            request_id="a",
            token_ids=tuple(prompt[start : start + chunk]),
            start=start,
            block_table=solo.table(min(start + chunk, 120)),
            state_slot=1,
            sample=start + chunk >= 120,
            stored_tokens=96,
            window_start=begin,
        )
        results = ranks.run(StepPlan(kind=P, step=0, sequences=(step,), is_placeholder=False))
    expected = solo.feed(prompt[96:])
    for result, runner in zip(results, ranks.runners, strict=True):
        assert torch.equal(result.logits[0], expected)
        assert runner.export_image(solo.table(120), 1, 120) == solo.image()
