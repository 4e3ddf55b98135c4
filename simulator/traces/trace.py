"""A workload: when requests arrive, how long they are, which prefixes they share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

BLOCK_TOKENS = 512  # tokens of one hash id in Mooncake's traces, and in ours


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request.

    Args:
        arrived_s: Seconds from the start of the trace.
        prompt_tokens, output_tokens: Lengths, at least 1.
        blocks: One id for each 512 tokens of the prompt, the last may be partial. An id stands for
            the whole prefix up to its block. Empty where the trace says nothing of content.
    """

    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival.

    Args:
        name: For tables and pictures.
        requests: At least one.
        is_generated: Made by us rather than recorded.
    """

    name: str
    requests: tuple[TraceRequest, ...]
    is_generated: bool = False

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last; at least a millisecond."""
        return max(1e-3, self.requests[-1].arrived_s - self.requests[0].arrived_s)

    @property
    def rate(self) -> float:
        """Mean arrivals a second."""
        return len(self.requests) / self.span_s

    def faster(self, factor: float) -> Trace:
        """The same requests, arriving `factor` times as fast.

        Raises:
            ValueError: a factor that is not a positive number.
        """
        if not 0 < factor < float("inf"):
            raise ValueError(f"load {factor}: give a positive number, 1 for the trace's own rate")
        if factor == 1:
            return self
        return dataclasses.replace(
            self,
            requests=tuple(
                TraceRequest(
                    request.arrived_s / factor,
                    request.prompt_tokens,
                    request.output_tokens,
                    request.blocks,
                )
                for request in self.requests
            ),
        )
