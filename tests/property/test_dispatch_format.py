"""Rows that are rounded on their way to experts: bits equal on any number of ranks, known error."""

import functools

import pytest
import torch

from engine.build import kv_layout
from engine.parallel.dispatch_format import DispatchFormat
from engine.parallel.layout import TensorLayout
from tests.fakes.model_groups import GroupModel
from tests.fakes.models import GOLDEN, TINY, Solo, golden, load

HCA8 = GOLDEN / "v4_hca8"
ROUNDED = [DispatchFormat.FP8, DispatchFormat.FP8_BF16]
PROMPTS = [[5, 77, 12, 200, 31], [9] * 21, [140, 18, 66, 3], [31, 7]]
STEPS = 4


@functools.cache
def one_rank(form: DispatchFormat, prompt: tuple[int, ...]) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens and their logits."""
    solo = Solo(load(HCA8, "off", form))
    tokens, logits = [], [solo.feed(list(prompt))]
    while len(tokens) < STEPS:
        tokens.append(int(logits[-1].argmax()))
        if len(tokens) < STEPS:
            logits.append(solo.feed(tokens[-1:]))
    return tokens, torch.stack(logits)


@pytest.mark.medium
@pytest.mark.parametrize("form", ROUNDED)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_that_share_experts_give_the_bits_of_one(
    form: DispatchFormat, num_ranks: int
) -> None:
    layout = TensorLayout(tp=num_ranks, dp=num_ranks, all_to_all=True)
    prompts = [PROMPTS[part::num_ranks] for part in range(num_ranks)]
    results = GroupModel(HCA8, layout, form=form).run(prompts, STEPS, chunks=[6] * num_ranks)
    for result in results:
        for prompt, tokens, logits in zip(
            prompts[result.part], result.tokens, result.logits, strict=True
        ):
            expected = one_rank(form, tuple(prompt))
            assert tokens == expected[0]
            assert torch.equal(logits, expected[1])
    assert not torch.equal(
        results[0].logits[0], one_rank(DispatchFormat.FLOAT32, (*PROMPTS[0],))[1]
    )


@pytest.mark.medium
@pytest.mark.parametrize("form", ROUNDED)
def test_the_error_on_the_bundled_model_is_what_the_notes_say(form: DispatchFormat) -> None:
    """Golden continuations, each step from the golden tokens before it."""
    errors, equal = [], 0
    chosen = [case for case in golden(TINY)["cases"] if len(case["input_ids"]) < 130][:8]
    for case in chosen:
        exact, rounded = Solo(load(TINY)), Solo(load(TINY, "off", form))
        for tokens in (case["input_ids"], *([token] for token in case["greedy_ids"][:11])):
            wanted, found = exact.feed(tokens), rounded.feed(tokens)
            errors.append(float((wanted - found).norm() / wanted.norm()))
            equal += int(wanted.argmax() == found.argmax())
    mean = sum(errors) / len(errors)
    assert 0.002 < mean < 0.02
    assert max(errors) < 0.2
    assert equal >= len(errors) - 2


def test_rounded_rows_give_kv_of_their_own() -> None:
    prints = {form: kv_layout(TINY, dispatch_format=form.value).fingerprint for form in ROUNDED}
    exact = kv_layout(TINY).fingerprint
    assert len({exact, *prints.values()}) == 3
    assert kv_layout(TINY, dispatch_format="float32").fingerprint == exact
