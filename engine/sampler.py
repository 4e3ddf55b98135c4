"""From logits to tokens: greedy, or by the draw of (seed, position).

Order: tokens banned by `min_tokens`, penalties, temperature, top_k, top_p, min_p, draw. Ties go to
the lowest id everywhere. Log-probabilities are those of the raw distribution, before all of that.

A row's result does not depend on its neighbours: plain greedy rows share one maximum, which is
exact; every other row is worked on alone, in float64, and the draw inverts a cumulative sum of
integers, so no order of a floating-point sum enters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.draws import draw_below
from engine.request import SamplingParams

# Weights of the draw: exp(x - max) in fixed point. 2**32 times a vocabulary of 2**20 stays below
# 2**63; a token 22 below the best in log-probability still has a weight.
_WEIGHT_SCALE = float(2**32)

_Scores = npt.NDArray[np.float64]
_Weights = npt.NDArray[np.int64]


class BadLogits(Exception):
    """The model gave NaN or infinity for a row: the request fails, its neighbours go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """What the sampler must know about the sequence of one row of logits.

    Args:
        sampling: checked parameters.
        token_ids: known tokens, prompt and generated; read only when there are penalties.
        num_prompt: how many of them are prompt.
        position: absolute position of the token to choose, which is the number of known tokens.
        banned_token_ids: tokens that may not be chosen.
    """

    sampling: SamplingParams
    token_ids: Sequence[int]
    num_prompt: int
    position: int
    banned_token_ids: tuple[int, ...] = ()

    @property
    def is_plain_greedy(self) -> bool:
        """True when the highest raw logit decides."""
        return (
            self.sampling.temperature == 0.0
            and not self.banned_token_ids
            and not self.sampling.has_penalties
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A chosen token; see `TokenOut` for the log-probabilities."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sampled | BadLogits]:
    """Chooses a token for every row. Waits for the device.

    Args:
        logits: [num_rows, vocab_size] float32.
        rows: one per row of `logits`.

    Returns:
        One result per row, in order; a row with bad logits yields its error.
    """
    if not rows:
        return []
    best_values, best_ids = _best(logits)
    results: list[Sampled | BadLogits] = []
    for row_idx, row in enumerate(rows):
        if not math.isfinite(best_values[row_idx]):
            results.append(BadLogits(f"the highest logit of the row is {best_values[row_idx]}"))
        elif row.is_plain_greedy and row.sampling.logprobs is None:
            results.append(Sampled(token_id=best_ids[row_idx]))
        else:
            results.append(_sample_alone(logits[row_idx], best_ids[row_idx], row))
    return results


def _best(logits: torch.Tensor) -> tuple[list[float], list[int]]:
    """Returns the highest logit of each row and its lowest id; NaN when the row has one."""
    if logits.device.type == "cpu":
        # numpy: 6 us for [8, 2048] where torch.max takes 55 us; both return the first of equals.
        host = logits.numpy()
        ids = host.argmax(axis=1)
        return host[np.arange(len(ids)), ids].tolist(), ids.tolist()
    values, device_ids = torch.max(logits, dim=1)
    return values.tolist(), device_ids.tolist()


def _sample_alone(logits: torch.Tensor, best_id: int, row: SampleRow) -> Sampled | BadLogits:
    raw: _Scores = logits.cpu().numpy().astype(np.float64)
    token_id = best_id
    if not row.is_plain_greedy:
        scores = _penalised(raw, row)
        best_id = int(scores.argmax())
        if scores[best_id] == -math.inf:
            return BadLogits("every token is banned or has no probability")
        token_id = best_id if row.sampling.temperature == 0.0 else _draw(scores, best_id, row)
    if row.sampling.logprobs is None:
        return Sampled(token_id=token_id)
    highest = float(raw.max())
    normaliser = highest + math.log(float(np.exp(raw - highest).sum()))
    top_ids = np.flatnonzero(_highest(raw, row.sampling.logprobs))
    top_ids = top_ids[np.argsort(-raw[top_ids], kind="stable")]
    return Sampled(
        token_id=token_id,
        logprob=float(raw[token_id]) - normaliser,
        top_logprobs=tuple((int(top_id), float(raw[top_id]) - normaliser) for top_id in top_ids),
    )


def _penalised(raw: _Scores, row: SampleRow) -> _Scores:
    """Returns scores after bans and penalties; `raw` stays as it is."""
    sampling = row.sampling
    if not sampling.has_penalties and not row.banned_token_ids:
        return raw
    scores = raw.copy()
    if sampling.has_penalties:
        known = np.asarray(row.token_ids, dtype=np.int64)
        if sampling.repetition_penalty != 1.0:
            seen = np.unique(known)
            values = scores[seen]
            factor = sampling.repetition_penalty
            scores[seen] = np.where(values > 0, values / factor, values * factor)
        counts = np.bincount(known[row.num_prompt :], minlength=len(scores))
        scores -= sampling.frequency_penalty * counts
        scores -= sampling.presence_penalty * (counts > 0)
    if row.banned_token_ids:
        scores[list(row.banned_token_ids)] = -math.inf
    return scores


def _draw(scores: _Scores, best_id: int, row: SampleRow) -> int:
    """Inverts the integer cumulative sum of the kept tokens, in order of id."""
    sampling = row.sampling
    # The highest score is taken off first: a tiny temperature then sends the rest to zero
    # weight instead of overflowing.
    with np.errstate(over="ignore"):
        shifted = (scores - scores[best_id]) / sampling.temperature
    weights: _Weights = (np.exp(shifted) * _WEIGHT_SCALE).astype(np.int64)
    if 0 < sampling.top_k < len(scores):
        weights = np.where(_highest(shifted, sampling.top_k), weights, 0)
    if sampling.top_p < 1.0:
        weights = _nucleus(weights, sampling.top_p)
    if sampling.min_p > 0.0:
        weights = np.where(weights >= sampling.min_p * float(weights[best_id]), weights, 0)
    sums = np.cumsum(weights)
    drawn = draw_below(int(sums[-1]), sampling.seed, row.position)
    return int(np.searchsorted(sums, drawn, side="right"))


def _nucleus(weights: _Weights, top_p: float) -> _Weights:
    """Keeps the smallest set of highest weights with a share of at least `top_p`.

    A token stays while the mass before it is below `top_p`, so the first always does.
    """
    ids = np.flatnonzero(weights)
    ids = ids[np.argsort(-weights[ids], kind="stable")]
    sums = np.cumsum(weights[ids])
    num_kept = 1 + int(np.count_nonzero(sums < top_p * float(sums[-1])))
    kept = np.zeros_like(weights)
    kept[ids[:num_kept]] = weights[ids[:num_kept]]
    return kept


def _highest(scores: _Scores, count: int) -> npt.NDArray[np.bool_]:
    """Returns a mask of the `count` highest scores; of equal ones the lower ids are taken."""
    if count == 0:
        return np.zeros(len(scores), dtype=np.bool_)
    count = min(count, len(scores))
    threshold = np.partition(scores, -count)[-count]
    mask: npt.NDArray[np.bool_] = scores > threshold
    ties = np.flatnonzero(scores == threshold)
    mask[ties[: count - int(np.count_nonzero(mask))]] = True
    return mask
