"""What every policy learns from the past: prefill cost and output length.

`Estimates` is the memory of a policy that keeps nothing else. It holds the requests that were
decided and not finished, so that a measured time finds the prompt it belongs to; that ledger is
bounded, the oldest entry goes first.
"""

from __future__ import annotations

from collections import OrderedDict

from balancer.routing.base import FOREVER, Knowledge
from balancer.routing.events import Decided, Event, Finished, PrefillEnded
from balancer.routing.options import RoutingOptions
from balancer.routing.quota import QuotaFit

_MAX_OPEN = 1 << 16
_SMOOTHING = 0.05  # of the newest answer's length, once there are twenty


class Estimates:
    """Fits prefill cost, averages output lengths; see `Memory`."""

    def __init__(self, options: RoutingOptions) -> None:
        self._fit = QuotaFit(options.flops, options.forgetting)
        self._outputs = [options.first_output_tokens] * options.num_classes
        self._num_outputs = [0] * options.num_classes
        self._open: OrderedDict[str, Decided] = OrderedDict()
        self._knowledge: Knowledge | None = None

    def observe(self, event: Event) -> None:
        """Takes one event; see `Memory`."""
        match event:
            case Decided():
                self._open[event.request_id] = event
                self._open.move_to_end(event.request_id)
                if len(self._open) > _MAX_OPEN:
                    self._open.popitem(last=False)
            case PrefillEnded() if event.compute_s is not None:
                if decided := self._open.get(event.request_id):
                    cached = event.cached_tokens
                    self._fit.take(
                        decided.num_tokens,
                        decided.cached_tokens if cached is None else cached,
                        event.compute_s,
                    )
                    self._knowledge = None
            case Finished():
                decided = self._open.pop(event.request_id, None)
                if decided is not None and event.output_tokens is not None:
                    self._take_output(decided.length_class, event.output_tokens)
            case _:
                pass

    def knowledge(self) -> Knowledge:
        """What decisions may know; see `Memory`."""
        if self._knowledge is None:
            self._knowledge = Knowledge(quota=self._fit.model, output_tokens=tuple(self._outputs))
        return self._knowledge

    def next_round_at(self, _now: float) -> float:
        """There are no rounds."""
        return FOREVER

    def open_request(self, request_id: str) -> Decided | None:
        """The latest decision for a request that has not finished."""
        return self._open.get(request_id)

    def _take_output(self, length_class: int, tokens: int) -> None:
        self._num_outputs[length_class] += 1
        share = max(_SMOOTHING, 1 / self._num_outputs[length_class])
        self._outputs[length_class] += share * (tokens - self._outputs[length_class])
        self._knowledge = None
