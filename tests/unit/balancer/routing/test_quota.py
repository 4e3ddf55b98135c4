"""Cost of a prefill: the formula, the start, the fit and its guards."""

from __future__ import annotations

import math
import random

import pytest

from balancer.routing.quota import FlopCount, QuotaFit, QuotaModel

LENGTHS = (300, 3_000, 30_000, 200_000)


def fitted(true: QuotaModel, num: int, *, low: int = 300, high: int = 100_000) -> QuotaFit:
    """A fit to noisy times of prompts of all lengths, half of them with a cached prefix."""
    fit, rng = QuotaFit(FlopCount(), 0.98), random.Random(1)
    for _ in range(num):
        length = int(math.exp(rng.uniform(math.log(low), math.log(high))))
        cached = rng.choice((0, length // 2))
        fit.take(length, cached, true.seconds(length, cached) * rng.lognormvariate(0, 0.1))
    return fit


def test_the_formula_counts_new_tokens_and_pairs() -> None:
    model = QuotaModel(a=2.0, b=3.0, c=5.0)
    assert model.seconds(10, 4) == 2 * 6 + 3 * 6 * (4 + 3) + 5
    assert model.seconds(10, 10) == model.seconds(10, 9)  # at least one token is computed


def test_it_starts_from_the_flop_count() -> None:
    # The public engine's estimate for a whole prompt of 65,536 tokens: 2518.553 TFLOP; 2 % off.
    start = QuotaFit(FlopCount(flops_per_s=1e12, fixed_s=1e-9), 0.98).model
    assert start.seconds(65_536, 0) == pytest.approx(2518.553, rel=0.02)
    assert start.seconds(1 << 20, 0) == pytest.approx(45_637.557, rel=0.02)


@pytest.mark.parametrize(
    "true",
    [
        QuotaModel(a=9e-5, b=2.6e-11, c=0.005),
        QuotaModel(a=2e-5, b=3e-9, c=0.03),
        QuotaModel(a=1e-3, b=0.0, c=0.0005),
    ],
)
def test_it_finds_the_true_cost_wherever_it_is(true: QuotaModel) -> None:
    model = fitted(true, 300).model
    for length in LENGTHS:
        assert model.seconds(length, 0) == pytest.approx(true.seconds(length, 0), rel=0.12)


def test_the_first_measurement_sets_the_speed() -> None:
    fit = QuotaFit(FlopCount(), 0.98)
    before = fit.model.seconds(1000, 0)
    fit.take(1000, 0, before * 50)
    assert fit.model.seconds(1000, 0) == pytest.approx(before * 50, rel=0.1)


def test_it_forgets_a_speed_that_is_gone() -> None:
    slow, fast = QuotaModel(a=1e-3, b=0.0, c=0.01), QuotaModel(a=1e-4, b=0.0, c=0.001)
    fit = fitted(slow, 200)
    rng = random.Random(2)
    for _ in range(300):
        length = rng.randrange(300, 10_000)
        fit.take(length, 0, fast.seconds(length, 0))
    assert fit.model.seconds(5_000, 0) == pytest.approx(fast.seconds(5_000, 0), rel=0.1)


def test_times_that_cannot_be_are_dropped_and_counted() -> None:
    fit = QuotaFit(FlopCount(), 0.98)
    before = fit.model
    for measured_s in (0.0, -1.0, float("nan"), float("inf")):
        fit.take(1000, 0, measured_s)
    fit.take(1000, 1000, 1.0)
    assert fit.model is before
    assert (fit.num_dropped, fit.num_taken) == (5, 0)


def test_one_wild_time_does_not_turn_the_fit_over() -> None:
    true = QuotaModel(a=9e-5, b=2.6e-11, c=0.005)
    for factor in (1e-6, 1e3):
        fit = fitted(true, 200)
        fit.take(1000, 0, true.seconds(1000, 0) * factor)
        assert fit.model.seconds(3_000, 0) == pytest.approx(true.seconds(3_000, 0), rel=0.5)


def test_coefficients_stay_positive() -> None:
    # Longer prompts that take less time: only negative coefficients would fit.
    fit = QuotaFit(FlopCount(), 0.98)
    for length in range(100, 5_000, 50):
        fit.take(length, 0, 1.0 / length)
        model = fit.model
        assert min(model.a, model.b, model.c) > 0


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="forgetting 0"):
        QuotaFit(FlopCount(), 0.0)
    with pytest.raises(ValueError, match="flops_per_s 0"):
        FlopCount(flops_per_s=0.0)
