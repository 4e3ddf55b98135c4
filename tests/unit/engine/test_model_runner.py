"""The runner's side of the contract with the scheduler: plans in, logits and bytes out."""

from typing import Any

import pytest
import torch

from engine.plan import SequenceStep, StepKind, StepPlan, placeholder_plan
from tests.fakes.models import GOLDEN, MAX_TOKENS, Solo, load

MODEL = GOLDEN / "v4_hca8"
TOKENS = [(7 * i * i + 3 * i + 5) % 250 + 3 for i in range(60)]
pytestmark = pytest.mark.medium


def step(
    name: str, tokens: list[int], start: int, pages: tuple[int, ...], slot: int, *, sample: bool
) -> SequenceStep:
    return SequenceStep(
        request_id=name,
        token_ids=tuple(tokens),
        start=start,
        block_table=pages,
        state_slot=slot,
        sample=sample,
    )


def plan(*steps: SequenceStep) -> StepPlan:
    return StepPlan(kind=StepKind.PREFILL, step=0, sequences=steps, is_placeholder=not steps)


def test_logits_come_in_plan_order_for_those_that_ask() -> None:
    runner = load(MODEL).runner()
    for slot in (1, 2, 3):
        runner.reset_slot(slot)
    result = runner.run(
        plan(
            step("a", TOKENS[:9], 0, (4,), 3, sample=True),
            step("b", TOKENS[:5], 0, (2,), 1, sample=False),
            step("c", TOKENS[:40], 0, (1, 3), 2, sample=True),
        )
    )
    assert result.logits.shape == (2, 256)
    assert result.logits.dtype is torch.float32
    for row, count in enumerate((9, 40)):
        assert torch.equal(result.logits[row], Solo(load(MODEL)).feed(TOKENS[:count]))


def test_a_step_without_samples_has_no_rows() -> None:
    runner = load(MODEL).runner()
    result = runner.run(plan(step("a", TOKENS[:9], 0, (4,), 3, sample=False)))
    assert result.logits.shape == (0, 256)


def test_a_placeholder_runs_and_touches_no_sequence() -> None:
    solo = Solo(load(MODEL))
    solo.feed(TOKENS[:40])
    before = solo.image()
    for kind in (StepKind.PREFILL, StepKind.DECODE):
        assert solo.runner.run(placeholder_plan(kind, 3)).logits.shape == (0, 256)
    assert solo.image() == before
    assert torch.equal(solo.feed(TOKENS[40:]), Solo(load(MODEL)).feed(TOKENS))


def test_a_step_larger_than_the_pool_is_refused() -> None:
    runner = load(MODEL).runner()
    with pytest.raises(ValueError) as caught:
        runner.run(plan(step("a", [5] * (MAX_TOKENS + 1), 0, tuple(range(1, 66)), 1, sample=True)))
    message = str(caught.value)
    assert f"step 0 has {MAX_TOKENS + 1} tokens" in message
    assert "max_num_batched_tokens" in message


def test_a_slot_is_overwritten_as_a_whole_by_an_import() -> None:
    """What a former sequence left in slot and pages is gone."""
    first, second = Solo(load(MODEL)), Solo(load(MODEL))
    first.feed(TOKENS[:10])
    second.feed(TOKENS[::-1])
    image = first.image()
    second.resume(image)
    assert second.image() == image
    assert torch.equal(second.feed(TOKENS[10:]), first.feed(TOKENS[10:]))


def test_a_reset_slot_starts_at_position_zero() -> None:
    solo = Solo(load(MODEL))
    expected = solo.feed(TOKENS[:30])
    again = Solo(load(MODEL), solo.runner)
    assert torch.equal(again.feed(TOKENS[:30]), expected)


def test_pieces_of_an_export_are_those_of_the_image() -> None:
    solo = Solo(load(MODEL))
    solo.feed(TOKENS)
    image = solo.image()
    table = solo.table(len(TOKENS))
    assert solo.runner.export_blocks(table[: len(image.blocks)]) == list(image.blocks)
    assert solo.runner.export_state(1, len(TOKENS)) == image.state
    small = solo.runner.export_image(table, 1, len(TOKENS), blocks=False)
    assert (small.blocks, small.partial, small.state) == ((), image.partial, image.state)


def test_logits_survive_the_next_step() -> None:
    solo = Solo(load(MODEL))
    logits = solo.feed(TOKENS[:10])
    kept = logits.clone()
    solo.feed(TOKENS[10:])
    assert torch.equal(logits, kept)


def test_a_placeholder_performs_the_collectives_of_a_step_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solo = Solo(load(MODEL))
    layers = solo.model.decoder._layers
    calls: list[int] = []

    class Counting:
        def __init__(self, inner: Any) -> None:
            self._inner = inner
            self.rank, self.num_ranks = inner.rank, inner.num_ranks

        def dispatch(self, rows: torch.Tensor, *rest: Any) -> Any:
            calls.append(rows.shape[0])
            return self._inner.dispatch(rows, *rest)

        def combine(self, *rest: Any) -> Any:
            return self._inner.combine(*rest)

    for layer in layers:
        experts = layer._experts._routed
        monkeypatch.setattr(experts, "_dispatcher", Counting(experts._dispatcher))
    solo.feed([5, 6, 7])
    assert calls == [3] * len(layers)
    calls.clear()
    before = solo.runner._pool.rows.clone()
    result = solo.runner.run(placeholder_plan(StepKind.DECODE, 2))
    assert calls == [0] * len(layers)
    assert result.logits.shape == (0, solo.model.layout.config.vocab_size)
    assert torch.equal(solo.runner._pool.rows, before)
