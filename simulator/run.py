"""One run: a trace through the real balancer objects onto simulated machines.

One heap of events, one virtual clock. A request walks as it does live: placed by the router, its
weight put on both members, its prefix loaded, prefilled in steps, published, fetched by decode,
decoded. What the balancer knows comes from heartbeats and from what it did itself.

    arrive -> admitted -> placed -> prefill -> first token -> commit -> fetch -> decode -> done
        |     ^           ^
        |     wait        held until an engine may take it
        v
     refused
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from balancer.admission import Admission
from balancer.admission import Verdict as Admitted
from balancer.explain.decisions import DecisionRing
from balancer.explain.journal import recorded_router
from balancer.membership import Membership
from balancer.membership.members import ExclusionCause
from balancer.membership.snapshot import CODE_OF
from balancer.router import Router
from balancer.routing.base import Placement, PlacementRequest, Verdict
from balancer.routing.options import RoutingOptions
from balancer.routing.policies import make_policy
from balancer.routing.shares import Shares
from simulator.engines.links import through
from simulator.engines.prefill import PrefillJob, Progress
from simulator.machines import Machines
from simulator.prefix_paths import PrefixPaths
from simulator.results.collect import collect
from simulator.results.samples import NAN, Look, RequestRow, Samples
from simulator.traces.trace import Trace

Report = Callable[[int, int], None]
"""Told how many requests of how many are over."""

_RECORDS = 64  # decisions kept; nobody asks a simulated balancer for old ones
_STALE_BEATS, _FORGET_BEATS = 5, 60
_ASK_AGAIN_S = 0.25  # as the live balancer
_MAX_WAIT_S = 60.0  # for room on decode, as in the live balancer's settings
_LOOKS = 400
_DRAIN_S = 7 * 86_400.0  # a run that has not ended by then never will
_FULL = CODE_OF[ExclusionCause.FULL]


class SimulationError(RuntimeError):
    """A run that does not come to an end."""


@dataclass(slots=True)
class _Flight:
    """A request on its way."""

    key: int
    request_id: str
    row: RequestRow
    blocks: tuple[int, ...]
    max_new: int
    attempt: int = 1
    prefill: int = -1
    decode: int = -1
    reserved: int = 0
    held_since: float = NAN


class Simulation:
    """Runs one policy over one trace; use once.

    Args:
        machines: Fresh ones.
        policy: Name of a real policy.
        options: What it is told.
        report: Told about progress.
        journal: Takes every input of placement, line by line; see `balancer.explain.journal`.
    """

    def __init__(
        self,
        *,
        trace: Trace,
        machines: Machines,
        policy: str,
        options: RoutingOptions,
        report: Report | None = None,
        journal: Callable[[str], None] | None = None,
    ) -> None:
        self._trace, self._machines = trace, machines
        self._options, self._report = options, report
        front = machines.topology.front
        self._hop_s, self._beat_s = front.hop_ms / 1000, front.heartbeat_s
        stale_s, forget_s = _STALE_BEATS * self._beat_s, _FORGET_BEATS * self._beat_s
        if journal is None:
            self.members = Membership(stale_after_s=stale_s, forget_after_s=forget_s)
            self.router = Router(
                members=self.members,
                policy=make_policy(policy, options),
                decisions=DecisionRing(_RECORDS),
            )
        else:
            self.members, self.router = recorded_router(
                journal,
                policy=policy,
                options=options,
                stale_after_s=stale_s,
                forget_after_s=forget_s,
                records=_RECORDS,
            )
        self.admission = Admission(
            max_running=front.max_running or machines.max_running * len(machines.decode_ids),
            max_waiting=front.max_waiting,
            num_classes=options.num_classes,
        )
        self._prefixes = PrefixPaths(machines)
        self.samples = Samples()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._events = 0
        self._flights: dict[int, _Flight] = {}
        self._held: dict[int, _Flight] = {}
        self._is_asking = False
        self._waiting = [0] * options.num_classes
        self._over = 0
        self._sequence = 0
        self._slots = [0] * len(machines.decode_ids)
        self._reserved = [0] * len(machines.decode_ids)
        self._decode_versions = [0] * len(machines.decode_groups)
        self._capacity_s = 0.0

    def run(self) -> Samples:
        """Runs to the last answer.

        Raises:
            SimulationError: requests that never end.
        """
        self._beat(0.0)
        for key, request in enumerate(self._trace.requests):
            self._at(request.arrived_s, self._arrive, key)
        last = self._trace.requests[-1].arrived_s
        self._at(0.0, self._look, max(last, 1.0) / _LOOKS)
        total = len(self._trace.requests)
        while self._over < total:
            at, _, action, arguments = heapq.heappop(self._heap)
            if at > last + _DRAIN_S:
                raise SimulationError(
                    f"{total - self._over} of {total} requests never end; the first: "
                    f"{next(iter(self._flights.values())).request_id}"
                )
            action(at, *arguments)
        collect(self.samples, self._machines, self._capacity_s)
        return self.samples

    def _at(self, at: float, action: Callable[..., None], *arguments: Any) -> None:
        self._events += 1
        heapq.heappush(self._heap, (at, self._events, action, arguments))

    # The balancer's side.

    def _beat(self, now: float) -> None:
        """Heartbeats of all members."""
        self._sequence += 1
        machines = self._machines
        for engine in range(len(machines.prefill_ids)):
            self.members.observe(machines.prefill_member(engine, self._sequence), now)
        for engine in range(len(machines.decode_ids)):
            self.members.observe(machines.decode_member(engine, self._sequence), now)
        self.router.pass_time(now)
        self._at(now + self._beat_s, self._beat)

    def _arrive(self, now: float, key: int) -> None:
        request = self._trace.requests[key]
        length_class = self._options.class_of(request.prompt_tokens)
        row = RequestRow(now, request.prompt_tokens, request.output_tokens, length_class)
        self.samples.rows.append(row)
        flight = self._flights[key] = _Flight(
            key,
            str(key),
            row,
            request.blocks,
            max(self._machines.topology.front.max_tokens, request.output_tokens),
        )
        self._waiting[length_class] += 1
        shared, _ = self._prefixes.lookup(request.blocks, request.prompt_tokens)
        seconds = self.router.knowledge().quota.seconds(request.prompt_tokens, shared)
        verdict = self.admission.offer(
            flight.request_id,
            priority=0,
            now=now,
            length_class=length_class,
            uncached_tokens=request.prompt_tokens - shared,
            deadline=self._deadline(flight),
            needs_s=seconds,
        )
        if verdict is Admitted.RUNNING:
            self._start(now, flight)
        elif verdict is not Admitted.WAITING:
            self._refuse(now, flight, verdict.value)

    def _start(self, now: float, flight: _Flight) -> None:
        """Places an admitted request, or holds it."""
        if not self._place(now, flight):
            self._hold(now, flight)

    def _deadline(self, flight: _Flight) -> float:
        patience_s = self._machines.topology.front.first_token_s
        return flight.row.arrived_at + patience_s if patience_s else math.inf

    def _place(self, now: float, flight: _Flight) -> bool:
        """Asks the router; returns whether the request is on its way, or refused."""
        full: set[str] = set()
        shared, local = self._prefixes.lookup(flight.blocks, flight.row.prompt_tokens)
        while True:
            record = self.router.place(self._request(flight, full, shared, local), now)
            self.samples.decisions += 1
            placement = record.placement
            if placement.verdict is not Verdict.PLACE:
                break
            prefill = self._machines.prefill_of[placement.prefill_side.chosen_id]
            decode = self._machines.decode_of[placement.decode_side.chosen_id]
            if self._reserve(flight, decode):
                self._begin(now, flight, placement, prefill, decode, shared, local)
                return True
            full.add(placement.decode_side.chosen_id)
        waited_s = 0.0 if math.isnan(flight.held_since) else now - flight.held_since
        if placement.verdict is Verdict.HOLD or (
            placement.verdict is Verdict.NO_PAIR
            and waited_s < _MAX_WAIT_S
            and bool((placement.decode_side.cause == _FULL).any())
        ):
            return False
        reason = "late" if placement.verdict is Verdict.REJECT else "no pair"
        self._refuse(now, flight, reason)
        return True

    def _request(
        self, flight: _Flight, full: set[str], shared: int, local: dict[str, int]
    ) -> PlacementRequest:
        return PlacementRequest(
            request_id=flight.request_id,
            attempt=flight.attempt,
            num_tokens=flight.row.prompt_tokens,
            max_new_tokens=flight.max_new,
            full=frozenset(full),
            cached_tokens=shared,
            local_cached=local,
            arrived_at=flight.row.arrived_at,
            deadline=self._deadline(flight),
            # Callers state the targets that their answers are judged by.
            ttft_slo_s=self._options.ttft_target_s(flight.row.prompt_tokens, None),
            tpot_slo_s=self._options.tpot_slo_s,
        )

    def _hold(self, now: float, flight: _Flight) -> None:
        """Keeps a request until something changes; asks again now and then as well."""
        flight.held_since = now
        self._held[flight.key] = flight
        self.samples.held += 1
        if not self._is_asking:
            self._is_asking = True
            self._at(now + _ASK_AGAIN_S, self._ask_again)

    def _ask_again(self, now: float) -> None:
        """Some requests wait for time to pass, e.g. until they may borrow an engine."""
        self._wake(now)
        self._is_asking = bool(self._held)
        if self._held:
            self._at(now + _ASK_AGAIN_S, self._ask_again)

    def _wake(self, now: float) -> None:
        """Room was made: asks for the held requests in order, until one of a class must wait on."""
        blocked: set[int] = set()
        for key, flight in list(self._held.items()):
            if flight.row.length_class in blocked:
                continue
            if self._place(now, flight):
                del self._held[key]
            else:
                blocked.add(flight.row.length_class)
            if len(blocked) == len(self._waiting):
                return

    def _reserve(self, flight: _Flight, decode: int) -> bool:
        """A slot and room on a decode engine, as its own service would grant it."""
        needed = flight.row.prompt_tokens + flight.max_new
        if (
            self._slots[decode] >= self._machines.max_running
            or self._reserved[decode] + needed > self._machines.decode_cost.kv_capacity_tokens
        ):
            return False
        self._slots[decode] += 1
        self._reserved[decode] += needed
        flight.reserved = needed
        return True

    def _begin(
        self,
        now: float,
        flight: _Flight,
        placement: Placement,
        prefill: int,
        decode: int,
        shared: int,
        local: dict[str, int],
    ) -> None:
        """Puts the weight of a placed request on its members and sends it to prefill."""
        machines, row = self._machines, flight.row
        flight.prefill, flight.decode, row.placed_at = prefill, decode, now
        name = machines.prefill_ids[prefill]
        self.members.assign(
            name, flight.request_id, row.prompt_tokens, quota_s=placement.quota_s, now=now
        )
        tokens = row.prompt_tokens + placement.output_tokens
        self.members.assign(machines.decode_ids[decode], flight.request_id, tokens, now=now)
        own = local.get(name, 0)
        row.cached_tokens = max(own, shared)
        arrives = now + self._hop_s
        ready, num_bytes = self._prefixes.load(
            arrives, flight.blocks, row.prompt_tokens, prefill, tokens=row.cached_tokens, own=own
        )
        self.samples.traffic.prefix_bytes += num_bytes
        job = PrefillJob(
            key=flight.key,
            prompt_tokens=row.prompt_tokens,
            done_tokens=row.cached_tokens,
            ready_at=ready,
        )
        self._capacity_s += machines.capacity_s(
            row.prompt_tokens - row.cached_tokens, row.cached_tokens
        )
        self._at(arrives, self._queue, prefill, job)

    def _refuse(self, now: float, flight: _Flight, reason: str) -> None:
        flight.row.refused = reason
        self.router.finished(flight.request_id, now)
        self._waiting[flight.row.length_class] -= 1
        self._end(now, flight)

    # Prefill.

    def _queue(self, now: float, prefill: int, job: PrefillJob) -> None:
        group, rank = divmod(prefill, self._machines.prefill_lockstep)
        self._machines.prefill_groups[group].add(rank, job)
        self._step(now, group)

    def _step(self, now: float, group: int) -> None:
        """Begins a step unless one is in flight; comes back when there is something to do."""
        found = self._machines.prefill_groups[group]
        if found.ends_at is not None:
            return
        at = found.begin(now)
        if at is not None:
            is_step = found.ends_at is not None
            self._at(at, self._step_ended if is_step else self._step, group)

    def _step_ended(self, now: float, group: int) -> None:
        machines = self._machines
        first = group * machines.prefill_lockstep
        per_token = machines.sizes.kv_bytes_per_token
        for progress in machines.prefill_groups[group].end(now):
            engine = first + progress.rank
            num_bytes = per_token * progress.q
            if progress.is_done:
                num_bytes += machines.sizes.state_bytes_per_sequence
            at = through(num_bytes, now, machines.prefill_out[engine], machines.store_in)
            self.samples.traffic.written_bytes += num_bytes
            if progress.is_done:
                self._prefilled(now, at, progress)
        self._step(now, group)

    def _prefilled(self, now: float, committed_at: float, progress: Progress) -> None:
        flight, job = self._flights[progress.job.key], progress.job
        row = flight.row
        row.began_at = job.started_at if job.started_at is not None else now
        row.first_at = now + self._hop_s
        self._at(row.first_at, self._first_token, flight)
        self._at(committed_at + self._hop_s, self._committed, flight, job.compute_s)

    def _first_token(self, _now: float, flight: _Flight) -> None:
        self._waiting[flight.row.length_class] -= 1

    def _committed(self, now: float, flight: _Flight, compute_s: float) -> None:
        """The ticket is at the balancer: prefill is over, decode begins."""
        machines, row = self._machines, flight.row
        traffic = self.samples.traffic
        traffic.prompt_tokens += row.prompt_tokens
        traffic.cached_tokens += row.cached_tokens
        self._prefixes.store(flight.blocks, row.prompt_tokens, flight.prefill)
        self.members.unassign(machines.prefill_ids[flight.prefill], flight.request_id, now=now)
        self.router.prefill_ended(
            flight.request_id, now, compute_s=compute_s, cached_tokens=row.cached_tokens
        )
        if row.output_tokens < 2:
            row.finished_at = row.first_at
            self._release(now, flight)
        else:
            num_bytes = machines.decode_cost.handoff_bytes(row.prompt_tokens)
            traffic.handoff_bytes += num_bytes
            links = (machines.store_out, machines.decode_in[flight.decode])
            self._at(through(num_bytes, now + self._hop_s, *links), self._join, flight)
        self._wake(now)

    # Decode.

    def _join(self, now: float, flight: _Flight) -> None:
        group, rank = divmod(flight.decode, self._machines.decode_lockstep)
        row = flight.row
        row.second_at = self._hop_s + self._machines.decode_groups[group].join(
            flight.key,
            rank,
            context=row.prompt_tokens,
            tokens=row.output_tokens - 1,
            now=now,
        )
        self._watch(group)

    def _watch(self, group: int) -> None:
        """Comes back when the next sequence of a group is complete; forgets earlier plans."""
        self._decode_versions[group] += 1
        at = self._machines.decode_groups[group].next_end()
        if at is not None:
            self._at(at, self._decoded, group, self._decode_versions[group])

    def _decoded(self, now: float, group: int, version: int) -> None:
        if version != self._decode_versions[group]:
            return
        for key in self._machines.decode_groups[group].pop_ended(now):
            flight = self._flights[key]
            flight.row.finished_at = now + self._hop_s
            self._release(now, flight)
        self._watch(group)
        self._wake(now)

    def _release(self, now: float, flight: _Flight) -> None:
        self._slots[flight.decode] -= 1
        self._reserved[flight.decode] -= flight.reserved
        name = self._machines.decode_ids[flight.decode]
        self.members.unassign(name, flight.request_id, now=now)
        self.router.finished(flight.request_id, now, output_tokens=flight.row.output_tokens)
        self._end(now, flight)

    def _end(self, now: float, flight: _Flight) -> None:
        del self._flights[flight.key]
        self._over += 1
        for request_id in self.admission.release(flight.request_id, now):
            self._start(now, self._flights[int(request_id)])
        for request_id in self.admission.take_late():
            self._refuse(now, self._flights[int(request_id)], Admitted.TOO_LATE.value)
        total = len(self._trace.requests)
        if self._report is not None and (self._over % max(1, total // 200) == 0):
            self._report(self._over, total)

    # What is noted.

    def _look(self, now: float, every_s: float) -> None:
        groups = self._machines.decode_groups
        requests = np.concatenate([group.requests for group in groups])
        kv = np.concatenate([group.kv_tokens() for group in groups])
        self.samples.looks.append(
            Look(
                at=now,
                waiting=tuple(self._waiting),
                engines=self._engines(),
                imbalance=(_imbalance(requests), _imbalance(kv)),
            )
        )
        self._at(now + every_s, self._look, every_s)

    def _engines(self) -> tuple[int, ...]:
        """Prefill engines by length class; nothing for policies without classes."""
        own = self.router.knowledge().own
        if isinstance(own, Shares) and own.class_of:
            return tuple(own.counts(len(self._waiting)))
        return ()


def _imbalance(values: np.ndarray) -> float:
    """max/mean; NaN when nobody has anything."""
    mean = float(values.mean())
    return float(values.max()) / mean if mean > 0 else NAN
