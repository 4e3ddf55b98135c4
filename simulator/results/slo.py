"""Latency targets: when a request counts as good."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_DURATION = r"(\d+(?:\.\d+)?)\s*(us|ms|s)"
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_PER_TOKENS = 16 * 1024
FORM = "ttft=2s+1s/16k,tpot=50ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Targets of one request.

    Args:
        ttft_s: Seconds to the first token, for an empty prompt.
        ttft_per_token_s: Seconds more for each token of the prompt.
        tpot_s: Seconds per token after the first.
    """

    ttft_s: float = 2.0
    ttft_per_token_s: float = 1.0 / _PER_TOKENS
    tpot_s: float = 0.05

    def ttft_target_s(self, prompt_tokens: int) -> float:
        """Seconds to the first token that count as good."""
        return self.ttft_s + self.ttft_per_token_s * prompt_tokens

    def is_met(self, prompt_tokens: int, ttft_s: float, tpot_s: float) -> bool:
        """Whether a complete answer was good; NaN for a TPOT of an answer of one token."""
        in_time = ttft_s <= self.ttft_target_s(prompt_tokens)
        return in_time and (math.isnan(tpot_s) or tpot_s <= self.tpot_s)

    def __str__(self) -> str:
        """As on the command line."""
        growing = self.ttft_per_token_s * _PER_TOKENS
        more = f"+{growing:g}s/16k" if growing else ""
        return f"ttft={self.ttft_s:g}s{more},tpot={self.tpot_s * 1e3:g}ms"


def parse_slo(text: str) -> Slo:
    """Reads targets such as `ttft=2s,tpot=50ms` or `ttft=2s+1s/16k`; what is left out is default.

    Raises:
        ValueError: something else; the message names the part and the form.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name == "ttft" and (
            match := re.fullmatch(rf"{_DURATION}(?:\s*\+\s*{_DURATION}/16[kK])?", value.strip())
        ):
            found["ttft_s"] = float(match[1]) * _UNITS[match[2]]
            growing = float(match[3]) * _UNITS[match[4]] if match[3] else 0.0
            found["ttft_per_token_s"] = growing / _PER_TOKENS
        elif name == "tpot" and (match := re.fullmatch(_DURATION, value.strip())):
            found["tpot_s"] = float(match[1]) * _UNITS[match[2]]
        else:
            raise ValueError(f"{part.strip()!r} is no target; write like {FORM}")
    slo = Slo(**found)
    if not slo.ttft_s > 0 or not slo.tpot_s > 0:
        raise ValueError(f"{text!r}: targets are above 0; write like {FORM}")
    return slo
