"""What the default policy remembers: estimates, demand per length class, and engine shares.

Demand of a class in a round is the predicted seconds of what was decided in it plus what was placed
before and is not computed yet. `RoundBegan` turns demand into the next shares. An engine that moves
owes the prefills it had; when the last of them ended it is settled. A round without any demand
forgets the shares: what comes next is anybody's guess, so every engine serves every class again.
"""

from __future__ import annotations

import dataclasses

from balancer.routing.base import Knowledge
from balancer.routing.estimates import Estimates
from balancer.routing.events import Decided, Event, Finished, PrefillEnded, RoundBegan
from balancer.routing.options import RoutingOptions
from balancer.routing.shares import Engine, Shares, next_shares


class ClassMemory:
    """The memory of `deepseek`; see `Memory`."""

    def __init__(self, options: RoutingOptions) -> None:
        self._options = options
        self._estimates = Estimates(options)
        self._arrived: dict[str, Decided] = {}
        self._carried_s = [0.0] * options.num_classes
        self._queues: dict[str, dict[str, Decided]] = {}  # prefills not ended, by engine
        self._owed: dict[str, set[str]] = {}  # prefills that a moving engine had before
        self._shares = Shares()
        self._next_round_at: float | None = None
        self._knowledge: Knowledge | None = None

    def observe(self, event: Event) -> None:
        """Takes one event; see `Memory`."""
        match event:
            case Decided():
                self._take_off(event.request_id)
                self._arrived[event.request_id] = event
                if event.prefill_id:
                    self._queues.setdefault(event.prefill_id, {})[event.request_id] = event
            case PrefillEnded() | Finished():
                self._take_off(event.request_id)
                if isinstance(event, Finished):
                    is_placed = self._arrived.get(event.request_id)
                    if is_placed is not None and not is_placed.prefill_id:
                        del self._arrived[event.request_id]  # it left without ever being placed
            case RoundBegan():
                self._begin_round(event)
        self._estimates.observe(event)

    def knowledge(self) -> Knowledge:
        """What decisions may know; see `Memory`."""
        base = self._estimates.knowledge()
        if (
            self._knowledge is None
            or self._knowledge.quota is not base.quota
            or self._knowledge.output_tokens is not base.output_tokens
            or self._knowledge.own is not self._shares
        ):
            self._knowledge = dataclasses.replace(base, own=self._shares)
        return self._knowledge

    def next_round_at(self, now: float) -> float:
        """The first round begins with the first decision; see `Memory`."""
        if self._next_round_at is None:
            self._next_round_at = now + self._options.round_s
        return self._next_round_at

    def check_integrity(self) -> None:
        """Raises AssertionError if an invariant is broken; for tests."""
        assert self._owed.keys() == self._shares.moving
        for engine_id, owed in self._owed.items():
            assert owed <= self._queues.get(engine_id, {}).keys() or not owed

    def _begin_round(self, event: RoundBegan) -> None:
        self._next_round_at = event.at + self._options.round_s
        demand = list(self._carried_s)
        for decided in self._arrived.values():
            demand[decided.length_class] += decided.quota_s
        engines = [
            Engine(engine_id=engine_id, quota_s=quota_s, requests=requests)
            for engine_id, quota_s, requests in event.engines
        ]
        if sum(demand) <= 0:
            self._shares, self._owed = Shares(), {}
        elif engines:
            starts = (0, *self._options.boundaries)
            old = self._shares.moving
            self._shares = next_shares(
                self._shares,
                engines,
                demand,
                [start < event.longest_tokens for start in starts],
                max_moves=self._options.max_moves,
                min_gain=self._options.min_gain,
            )
            for engine_id in old - self._shares.moving:
                del self._owed[engine_id]
            for engine_id in self._shares.moving - old:
                self._owed[engine_id] = set(self._queues.get(engine_id, ()))
        self._arrived.clear()
        self._carried_s = [0.0] * self._options.num_classes
        self._forget_lost()
        for queue in self._queues.values():
            for decided in queue.values():
                self._carried_s[decided.length_class] += decided.quota_s

    def _forget_lost(self) -> None:
        """Drops prefills whose end will not be told any more: the ledger gave them up."""
        is_open = self._estimates.open_request
        for engine_id, queue in list(self._queues.items()):
            kept = {name: decided for name, decided in queue.items() if is_open(name) is decided}
            if len(kept) < len(queue):
                self._queues[engine_id] = kept

    def _take_off(self, request_id: str) -> None:
        """A prefill is not (or no longer) on its engine."""
        decided = self._estimates.open_request(request_id)
        if decided is None or not decided.prefill_id:
            return
        queue = self._queues.get(decided.prefill_id, {})
        if queue.pop(request_id, None) is not None and not queue:
            del self._queues[decided.prefill_id]
        owed = self._owed.get(decided.prefill_id)
        if owed is not None:
            owed.discard(request_id)
            if not owed:
                self._settle(decided.prefill_id)

    def _settle(self, engine_id: str) -> None:
        del self._owed[engine_id]
        moving = self._shares.moving - {engine_id}
        self._shares = dataclasses.replace(self._shares, moving=moving)
