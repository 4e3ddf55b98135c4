"""The engine benchmark measures full decode batches and whole prefills."""

import pytest

from benchmarks.engine import OurDecode, make_engine, our_prefill, prompts

pytestmark = pytest.mark.medium


def test_prompts_are_the_same_on_every_call() -> None:
    assert prompts(2, 5) == prompts(2, 5)
    assert [len(prompt) for prompt in prompts(3, 7)] == [7, 7, 7]


def test_decode_and_prefill_are_timed_and_leave_nothing() -> None:
    engine = make_engine(batch_invariant=True)
    run = OurDecode(engine, 2, 3)
    assert run() > 0
    assert run() > 0
    assert our_prefill(engine, 40)() > 0
    statistics = engine.statistics()
    assert (statistics.running, statistics.waiting, statistics.kv_tokens) == (0, 0, 0)
    # Two rounds of at least three full steps of two sequences each.
    assert statistics.generated_tokens >= 2 * 3 * 2
