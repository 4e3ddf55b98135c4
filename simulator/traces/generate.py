"""A workload that reaches the longest class. Ours: no public trace has prompts of 256K tokens.

Arrivals are a Poisson process. Shares of requests by class are settings; lengths are log-uniform
inside a class. Another share goes on with an earlier request, whatever its class: the prompt is the
earlier prompt and answer with new text behind, so its blocks begin with the same ids. Everything
follows from the seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simulator.traces.trace import BLOCK_TOKENS, Trace, TraceRequest

_K = 1024
_RECENT = 200  # requests that may be gone on with
_SHORTEST_TURN, _LONGEST_TURN = 32, 4096  # tokens of what a follower adds


@dataclass(frozen=True, slots=True, kw_only=True)
class MixSettings:
    """What to generate.

    Args:
        num_requests: How many.
        rate: Mean arrivals a second.
        shares: Requests below 16K, 64K, 256K and above, as parts of their sum.
        shortest, longest: Tokens of the shortest and the longest prompt.
        follow_share: Requests that go on with an earlier one.
        output_median: Tokens of the median answer; answers are log-normal.
        max_output: Longest answer.
    """

    num_requests: int = 6000
    rate: float = 2.0
    shares: tuple[float, ...] = (0.70, 0.22, 0.06, 0.02)
    shortest: int = 256
    longest: int = 1_000_000
    follow_share: float = 0.3
    output_median: int = 300
    max_output: int = 2000

    def __post_init__(self) -> None:
        """Refuses what cannot be."""
        for field, lowest in (("num_requests", 1), ("output_median", 1), ("max_output", 1)):
            if getattr(self, field) < lowest:
                raise ValueError(f"{field} {getattr(self, field)} must be at least {lowest}")
        if not self.rate > 0:
            raise ValueError(f"rate {self.rate} must be above 0")
        if len(self.shares) != 4 or min(self.shares) < 0 or not sum(self.shares) > 0:
            raise ValueError(f"shares {self.shares} must be four numbers from 0, not all 0")
        if not 0 <= self.follow_share < 1:
            raise ValueError(f"follow_share {self.follow_share} must be in [0, 1)")
        if not 1 <= self.shortest < 16 * _K or self.longest <= 256 * _K:
            raise ValueError(
                f"shortest {self.shortest} must be in [1, 16384), longest {self.longest} above "
                "262144"
            )


def generate_mix(seed: int, settings: MixSettings | None = None) -> Trace:
    """Returns a generated workload; the same seed gives the same requests."""
    settings = settings or MixSettings()
    draws = np.random.default_rng(seed)
    bounds = (settings.shortest, 16 * _K, 64 * _K, 256 * _K, settings.longest)
    shares = np.array(settings.shares) / sum(settings.shares)
    arrived, next_id = 0.0, 0
    made: list[TraceRequest] = []
    for _ in range(settings.num_requests):
        arrived += float(draws.exponential(1 / settings.rate))
        output = int(settings.output_median * float(draws.lognormal(0.0, 0.8)))
        output = min(settings.max_output, max(1, output))
        prefix: tuple[int, ...] = ()
        kind = int(draws.choice(4, p=shares))
        prompt = int(math.exp(draws.uniform(math.log(bounds[kind]), math.log(bounds[kind + 1]))))
        if made and draws.random() < settings.follow_share:
            earlier = made[-1 - int(draws.integers(min(len(made), _RECENT)))]
            said = int(math.exp(draws.uniform(math.log(_SHORTEST_TURN), math.log(_LONGEST_TURN))))
            follow = earlier.prompt_tokens + earlier.output_tokens + said
            if follow <= settings.longest:
                prompt = follow
                prefix = earlier.blocks[: earlier.prompt_tokens // BLOCK_TOKENS]
        count = -(-prompt // BLOCK_TOKENS)
        blocks = prefix + tuple(range(next_id, next_id + count - len(prefix)))
        next_id += count - len(prefix)
        made.append(TraceRequest(arrived, prompt, output, blocks))
    return Trace(name=f"generated mix, seed {seed}", requests=tuple(made), is_generated=True)
