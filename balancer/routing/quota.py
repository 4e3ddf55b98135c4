"""Compute quota of a prefill in seconds, and its online fit to measured times. Pure arithmetic.

    quota = a*n_new + b*n_new*(n_cached + n_new/2) + c        n_new = tokens to compute

The three coefficients start from the model's FLOP count at an assumed speed and are then fitted by
least squares with forgetting and without negative values. Three guards keep the fit sane:

- errors are relative to the larger of the measured and the expected time, so a million-token
  prompt does not silence a thousand short ones, and no single time has much to say;
- a weak pull (`_RIDGE`) towards the shape of the FLOP count at the speed measured so far fills in
  what the prompts of the moment do not show, e.g. the quadratic part when all are short;
- a time that is not positive and finite is dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

_RIDGE = 1e-5  # of one measurement's weight
_MIN_SHARE = 0.02  # of what the speed alone predicts; keeps every token at some price


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaModel:
    """Coefficients in seconds; see the module."""

    a: float
    b: float
    c: float

    def seconds(self, num_tokens: int, cached_tokens: int) -> float:
        """Predicted prefill time of a prompt of which a prefix is cached; at least one is new."""
        new = max(1, num_tokens - cached_tokens)
        cached = num_tokens - new
        return self.a * new + self.b * new * (cached + new / 2) + self.c


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopCount:
    """What a prefill costs before any has been measured.

    The defaults are the compute estimate of V4.1-Flash without decoder replay, on the order of a
    rank's sustained speed.

    Attributes:
        per_token, per_pair: FLOP of a new token, and of a (new, earlier) pair of tokens.
        flops_per_s: Sustained speed of one engine.
        fixed_s: Seconds of a prefill apart from that.
    """

    per_token: float = 37.89e9
    per_pair: float = 10_240.0
    flops_per_s: float = 4e14
    fixed_s: float = 0.005

    def __post_init__(self) -> None:
        """Refuses what is not positive."""
        for name in ("per_token", "per_pair", "flops_per_s", "fixed_s"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} {value} must be positive and finite")

    def model(self) -> QuotaModel:
        """The coefficients at that speed."""
        return QuotaModel(
            a=self.per_token / self.flops_per_s,
            b=self.per_pair / self.flops_per_s,
            c=self.fixed_s,
        )


class QuotaFit:
    """Fits the coefficients to measured prefills; the state is a few sums.

    Args:
        start: Shape and scale before the first measurement.
        forgetting: Weight of a measurement after the next one came, in (0, 1]; 0.98 remembers
            about fifty.
    """

    def __init__(self, start: FlopCount, forgetting: float) -> None:
        if not 0 < forgetting <= 1:
            raise ValueError(f"forgetting {forgetting} must be in (0, 1]")
        self._start = start.model()
        self._forgetting = forgetting
        self._gram = np.zeros((3, 3))  # of features relative to the start and to the time measured
        self._sums = np.zeros(3)
        self._log_speed = 0.0
        self._weight = 0.0
        self._model = self._start
        self.num_taken = 0
        self.num_dropped = 0

    @property
    def model(self) -> QuotaModel:
        """The current coefficients; the same object until a measurement changes them."""
        return self._model

    def take(self, num_tokens: int, cached_tokens: int, measured_s: float) -> None:
        """Learns from one prefill; a time that cannot be is counted and dropped."""
        if not (math.isfinite(measured_s) and measured_s > 0 and num_tokens > cached_tokens >= 0):
            self.num_dropped += 1
            return
        self.num_taken += 1
        new = num_tokens - cached_tokens
        parts = np.array(
            [
                self._start.a * new,
                self._start.b * new * (cached_tokens + new / 2),
                self._start.c,
            ]
        )
        self._weight = self._weight * self._forgetting + 1.0
        step = math.log(measured_s / float(parts.sum())) - self._log_speed
        self._log_speed += step / self._weight
        expected_s = self._model.seconds(num_tokens, cached_tokens)
        scale_s = max(measured_s, expected_s if self.num_taken > 1 else 0.0)
        relative = parts / scale_s
        self._gram = self._gram * self._forgetting + np.outer(relative, relative)
        self._sums = self._sums * self._forgetting + relative * (measured_s / scale_s)
        self._solve()

    def _solve(self) -> None:
        """Finds the non-negative factors on the start's coefficients with the least error."""
        scale = math.exp(self._log_speed)
        # In units of `scale` the pull is towards one, whatever the speed.
        gram = self._gram * scale * scale + _RIDGE * np.eye(3)
        sums = self._sums * scale + _RIDGE
        factors = np.maximum(_least_squares(gram, sums), _MIN_SHARE) * scale
        self._model = QuotaModel(
            a=self._start.a * float(factors[0]),
            b=self._start.b * float(factors[1]),
            c=self._start.c * float(factors[2]),
        )


def _least_squares(gram: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The x >= 0 that minimises x'Gx/2 - s'x, for a positive definite G of three rows.

    With three unknowns all seven sets of positive ones are tried; the full set is optimal whenever
    its solution is not negative.
    """
    best, best_value = np.zeros(3), 0.0
    for size in (3, 2, 1):
        for kept in combinations(range(3), size):
            index = list(kept)
            part = np.linalg.solve(gram[np.ix_(index, index)], sums[index])
            if (part < 0).any():
                continue
            value = -0.5 * float(sums[index] @ part)
            if value < best_value:
                best, best_value = np.zeros(3), value
                best[index] = part
        if size == 3 and best_value < 0.0:
            break
    return best
