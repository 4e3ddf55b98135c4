"""The sampler against definitions written out in Python, and its independence of the batch."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from engine.draws import draw_below
from engine.request import SamplingParams
from engine.sampler import BadLogits, Sampled, SampleRow, sample

VOCAB = 50


def row_of(
    position: int = 5,
    token_ids: tuple[int, ...] = (),
    num_prompt: int = 0,
    banned: tuple[int, ...] = (),
    **sampling: object,
) -> SampleRow:
    return SampleRow(
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
        token_ids=token_ids,
        num_prompt=num_prompt,
        position=position,
        banned_token_ids=banned,
    )


def logits_of(seed: int, rows: int = 1, vocab: int = VOCAB) -> torch.Tensor:
    generator = np.random.Generator(np.random.PCG64(seed))
    # Quarters, so that ties occur.
    return torch.from_numpy((generator.normal(0, 3, (rows, vocab)) * 4).round() / 4).float()


def one(logits: torch.Tensor, row: SampleRow) -> Sampled:
    (result,) = sample(logits, [row])
    assert isinstance(result, Sampled)
    return result


def test_greedy_takes_the_highest_and_the_lowest_id_of_equals() -> None:
    logits = torch.zeros(4, 300)
    logits[1, [17, 250]] = 2.0
    logits[2, :] = -5.0
    logits[3, 299] = 1e-6
    rows = [row_of(), row_of(), row_of(), row_of()]
    assert [r.token_id for r in sample(logits, rows) if isinstance(r, Sampled)] == [0, 17, 0, 299]


def kept_by_definition(logits: list[float], params: SamplingParams) -> dict[int, float]:
    """Probabilities after temperature, top_k, top_p, min_p, from their definitions."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    highest = logits[order[0]]
    weights = {i: math.exp((logits[i] - highest) / params.temperature) for i in order}
    kept = order[: params.top_k] if params.top_k else order
    total = sum(weights[i] for i in kept)
    before, nucleus = 0.0, []
    for i in kept:
        if nucleus and before >= params.top_p * total:
            break
        nucleus.append(i)
        before += weights[i]
    floor = params.min_p * weights[nucleus[0]]
    final = [i for i in nucleus if weights[i] >= floor]
    total = sum(weights[i] for i in final)
    return {i: weights[i] / total for i in final}


FILTERS = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0, "top_k": 5},
    {"top_k": 1},
    {"top_k": VOCAB + 5},
    {"top_p": 0.8},
    {"top_p": 1e-9},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"temperature": 2.0, "top_k": 9, "top_p": 0.7, "min_p": 0.1},
]


@pytest.mark.parametrize("filters", FILTERS)
def test_draws_invert_the_distribution_of_the_definition(filters: dict[str, float]) -> None:
    for seed in range(4):
        logits = logits_of(seed)
        params = SamplingParams(**{"temperature": 1.0, **filters}, seed=seed)  # type: ignore[arg-type]
        expected = kept_by_definition(logits[0].tolist(), params)
        for position in range(40):
            token = one(
                logits, SampleRow(sampling=params, token_ids=(), num_prompt=0, position=position)
            ).token_id
            # The draw as a number in [0, 1) picks the token whose share of the line, in order
            # of id, holds it.
            point = draw_below(2**53, seed, position) / 2**53
            start = sum(p for i, p in expected.items() if i < token)
            assert start - 1e-6 <= point <= start + expected[token] + 1e-6


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.125, 0.125]]))
    draws = Counter(
        one(logits, row_of(position, temperature=1.0, seed=9)).token_id for position in range(2000)
    )
    for token, probability in enumerate((0.5, 0.25, 0.125, 0.125)):
        deviation = (2000 * probability * (1 - probability)) ** 0.5
        assert abs(draws[token] - 2000 * probability) < 5 * deviation


def test_a_row_does_not_depend_on_its_neighbours_or_its_place() -> None:
    logits = logits_of(3, rows=9, vocab=2048)
    rows = [
        row_of(
            position=i,
            token_ids=tuple(range(i, 60)),
            num_prompt=10,
            temperature=(0.0, 1.0, 0.7)[i % 3],
            top_p=(1.0, 0.9)[i % 2],
            logprobs=(None, 4)[i % 2],
            repetition_penalty=(1.0, 1.3)[i // 5],
            seed=i,
        )
        for i in range(9)
    ]
    together = sample(logits, rows)
    backwards = sample(logits.flip(0).contiguous(), rows[::-1])[::-1]
    alone = [sample(logits[i : i + 1].clone(), [rows[i]])[0] for i in range(9)]
    assert together == backwards == alone


def test_penalties_act_on_what_was_seen() -> None:
    logits = torch.tensor([[2.0, 1.9, -1.0, 1.8]])
    history = {"token_ids": (0, 3, 1, 1), "num_prompt": 2}
    assert one(logits, row_of(**history)).token_id == 0  # type: ignore[arg-type]
    # Generated: token 1, twice. Prompt tokens are not touched by these two.
    assert one(logits, row_of(presence_penalty=-0.2, **history)).token_id == 1  # type: ignore[arg-type]
    assert one(logits, row_of(frequency_penalty=-0.06, **history)).token_id == 1  # type: ignore[arg-type]
    assert one(logits, row_of(presence_penalty=-0.06, **history)).token_id == 0  # type: ignore[arg-type]
    # Repetition covers the prompt too: all but the negative one are divided.
    assert one(logits, row_of(repetition_penalty=0.5, **history)).token_id == 0  # type: ignore[arg-type]
    negative = torch.tensor([[-2.0, -2.1, -9.0, -8.0]])
    assert one(negative, row_of(repetition_penalty=1.2, token_ids=(0,))).token_id == 1
    assert one(logits, row_of(repetition_penalty=1.2, token_ids=(0,))).token_id == 1


def test_penalties_and_bans_leave_the_logits_alone() -> None:
    logits = logits_of(1)
    before = logits.clone()
    one(logits, row_of(temperature=1.0, presence_penalty=1.0, token_ids=(1, 2), banned=(3,)))
    assert torch.equal(logits, before)


def test_banned_tokens_are_never_chosen() -> None:
    logits = torch.tensor([[9.0, 8.0, 1.0]])
    assert one(logits, row_of(banned=(0,))).token_id == 1
    draws = {one(logits, row_of(p, banned=(0, 1), temperature=1.0)).token_id for p in range(20)}
    assert draws == {2}
    (result,) = sample(logits, [row_of(banned=(0, 1, 2))])
    assert isinstance(result, BadLogits)


def test_log_probabilities_are_raw_and_ties_go_to_lower_ids() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0]])
    total = math.log(sum(math.exp(x) for x in logits[0].tolist()))
    for options in (
        {},
        {"temperature": 0.1, "top_k": 1},
        {"banned": (2,), "presence_penalty": 2.0},
    ):
        result = one(logits, row_of(logprobs=2, **options))  # type: ignore[arg-type]
        assert result.token_id == 1
        assert result.logprob == pytest.approx(3.0 - total, abs=1e-12)
        assert [token for token, _ in result.top_logprobs] == [1, 2]
        assert result.top_logprobs[0][1] == result.logprob
    assert one(logits, row_of(logprobs=0)).top_logprobs == ()
    assert len(one(logits, row_of(logprobs=20)).top_logprobs) == 5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_logits_fail_their_row_only(bad: float) -> None:
    logits = logits_of(2, rows=3)
    logits[1, 40] = bad
    first, second, third = sample(logits, [row_of(), row_of(temperature=1.0), row_of()])
    assert isinstance(second, BadLogits)
    assert str(bad) in str(second)
    assert isinstance(first, Sampled)
    assert isinstance(third, Sampled)


@pytest.mark.parametrize("temperature", [1e-300, 1e-12, 1e300])
def test_extreme_temperatures_do_not_overflow(temperature: float) -> None:
    logits = torch.tensor([[1.0, 2.0, -3.0e38]])
    tokens = {one(logits, row_of(p, temperature=temperature)).token_id for p in range(30)}
    assert tokens == ({1} if temperature < 1 else {0, 1, 2})


def test_no_rows_are_legal() -> None:
    assert sample(torch.zeros(0, VOCAB), []) == []
