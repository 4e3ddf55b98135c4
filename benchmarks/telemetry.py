"""What traces and metrics cost: tokens a second of the same system with them and without, one run.

    python -m benchmarks.telemetry --json [--rounds 12] [--starts 4] [--clients 8]

Starts three systems of the bundled model (1 prefill + 1 decode rank each) and a collector, and
gives each of them the same load in turn, again and again, while the other two are idle. Two starts
of the very same system differ as well, by where their memory came to lie, so the three are started
anew several times, in another order each, and every start gives its share of the rounds. Prints
one object on its last line:

    tokens_per_s: {off, sampled, all}: medians
        off      no endpoint for spans, nobody reads metrics
        sampled  spans of a tenth of the requests (the default) over OTLP to the collector, and the
                 metrics of every process read every five seconds
        all      the same with the spans of every request
    overhead: {sampled, all}: {median, low, high, sure}
        1 minus the ratio to `off`, of rounds that ran one right after the other; median, quartiles,
        and the two ends between which the median lies with 95 % (order statistics: no shape of the
        noise is assumed). Metrics are recorded in all three, as they cannot be turned off
    cpu_ms_per_token: {off, sampled, all}; cpu_overhead: {sampled, all}: {median, low, high, sure}
        the same in processor time of all processes of a system, which others on the machine change
        less; the ratio to `off`, minus 1
    by_start: {overhead: {sampled, all}, cpu_overhead: {sampled, all}}
        the median of each start alone, in their order: where these lie further apart than `low`
        and `high`, it is the starts that differ and not the telemetry, `sure` is too narrow, since
        pairs of one start are not independent, and more starts help where more rounds do not
    spans: {per_request, us, share}
        spans of one request over all processes; processor microseconds of one, measured alone in
        this process; both together over the processor time of a request: what `all` should cost
    traces, reads: what was exported and read meanwhile, so that a figure of nothing is seen
    environment
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.environment import REPOSITORY, describe, median
from benchmarks.serving import MODEL
from client import AsyncClient, Sampling
from disagg.v1 import membership_pb2, membership_pb2_grpc, traces_pb2, traces_pb2_grpc
from runtime.clock import SystemClock
from runtime.tracing.encoding import encode
from runtime.tracing.recording import OtelTracer

SEED = 0
RATIOS: Mapping[str, float | None] = {"off": None, "sampled": 0.1, "all": 1.0}
_READ_INTERVAL_S = 5.0
# Every process sends what it has every five seconds, unless a variable says otherwise.
_SENT_S = 8.0


@dataclass(frozen=True)
class Measured:
    """Tokens a second and processor milliseconds a token of each round, by system."""

    rates: dict[str, list[float]]
    cpu_ms: dict[str, list[float]]
    num_reads: int = 0

    @classmethod
    def joined(cls, parts: Sequence[Measured]) -> Measured:
        """All rounds of several starts of the same systems."""
        rates: dict[str, list[float]] = {name: [] for name in parts[0].rates}
        cpu_ms: dict[str, list[float]] = {name: [] for name in parts[0].rates}
        for part in parts:
            for name in rates:
                rates[name] += part.rates[name]
                cpu_ms[name] += part.cpu_ms[name]
        return cls(rates, cpu_ms, sum(part.num_reads for part in parts))


@contextlib.contextmanager
def process(*command: str, **variables: str) -> Iterator[dict[str, Any]]:
    """A program of ours while the body runs; yields its ready line."""
    environment = {**os.environ, **variables}
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=environment,
    ) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise SystemExit(f"{' '.join(command)} did not start; see its messages above")
            yield json.loads(line)
        finally:
            child.terminate()
            child.wait(60)


@contextlib.contextmanager
def running(name: str, collector: str) -> Iterator[dict[str, Any]]:
    """One of the three systems."""
    ratio = RATIOS[name]
    variables = {}
    if ratio is not None:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector}",
            "OTEL_TRACES_SAMPLER_ARG": str(ratio),
        }
    sides = ("--prefill-ranks", "1", "--decode-ranks", "1")
    command = ("cli", "up", "--json", "--http", "0", "--model", str(MODEL), *sides)
    with process(*command, **variables) as said:
        yield said


def pages_of(said: Mapping[str, Any]) -> list[str]:
    """Where the metrics of a system's processes are read."""
    with grpc.insecure_channel(said["address"]) as channel:
        stub = membership_pb2_grpc.MembershipServiceStub(channel)
        answer = stub.ListMembers(membership_pb2.ListMembersRequest(), timeout=10)
    members = [member.metrics_address for member in answer.members if member.metrics_address]
    return [f"{said['http']}/metrics", *(f"http://{address}/metrics" for address in members)]


async def read_pages(pages: list[str]) -> int:
    """Reads metrics until cancelled, as a Prometheus does; returns how often."""
    num_reads = 0

    def read() -> int:
        for page in pages:
            request = urllib.request.Request(
                page, headers={"accept": "application/openmetrics-text; version=1.0.0"}
            )
            with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(request) as got:
                got.read()
        return len(pages)

    with contextlib.suppress(asyncio.CancelledError):
        while True:
            num_reads += await asyncio.to_thread(read)
            await asyncio.sleep(_READ_INTERVAL_S)
    return num_reads


def cpu_s(pids: Iterable[int]) -> float:
    """Processor time of some processes and all below them so far, in seconds."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            children.setdefault(int(fields[1]), []).append(pid)
            used[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    total, waiting = 0.0, list(pids)
    while waiting:
        pid = waiting.pop()
        total += used.get(pid, 0.0)
        waiting += children.get(pid, [])
    return total


def pids_of(said: Mapping[str, Any]) -> set[int]:
    """The processes of a system, without its store and what launched it."""
    return {int(row["pid"]) for row in said["processes"] if row["role"] != "store" and row["pid"]}


async def load(client: AsyncClient, rng: random.Random, clients: int, tokens: int) -> float:
    """Tokens a second of so many callers at once, each with a fresh prompt."""

    async def ask(prompt: list[int]) -> int:
        sampling = Sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        answer = await client.generate(prompt, sampling=sampling)
        return len(answer.token_ids)

    prompts = [[rng.randrange(3, 2048) for _ in range(96)] for _ in range(clients)]
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(prompt)) for prompt in prompts]
    return sum(task.result() for task in tasks) / (time.perf_counter() - begin)


async def measure(
    systems: Mapping[str, Mapping[str, Any]],
    *,
    rounds: int,
    clients: int,
    tokens: int,
    first: int = 0,
) -> Measured:
    """Every round of every system, after one that warms up.

    Args:
        first: Number of the warm-up; numbers seed prompts and order.
    """
    found = Measured({name: [] for name in systems}, {name: [] for name in systems})
    pages = [page for name in systems if RATIOS[name] for page in pages_of(systems[name])]
    async with contextlib.AsyncExitStack() as stack:
        callers = {
            name: await stack.enter_async_context(AsyncClient(said["address"]))
            for name, said in systems.items()
        }
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(read_pages(pages))
            for number in range(first, first + rounds + 1):
                # Another order each time, so that nobody always runs after the same one.
                names = list(systems)
                random.Random(number).shuffle(names)
                for name in names:
                    pids = pids_of(systems[name])
                    before = cpu_s(pids)
                    rate = await load(callers[name], random.Random(number), clients, tokens)
                    used = cpu_s(pids) - before
                    if number > first:
                        found.rates[name].append(rate)
                        found.cpu_ms[name].append(1e3 * used / (clients * tokens))
            reader.cancel()
    return replace(found, num_reads=reader.result())


def overhead_of(
    figures: Mapping[str, list[float]], name: str, *, more_is_better: bool
) -> dict[str, Any]:
    """What a system loses to `off`, over pairs of one round: median, quartiles, 95 % interval."""
    ratios = [ours / off for ours, off in zip(figures[name], figures["off"], strict=True)]
    losses = [1 - ratio if more_is_better else ratio - 1 for ratio in ratios]
    low, middle, high = statistics.quantiles(losses, n=4, method="inclusive")
    sure = [round(end, 4) for end in interval_of_median(losses)]
    return {"median": round(middle, 4), "low": round(low, 4), "high": round(high, 4), "sure": sure}


def interval_of_median(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The ends between which the true median lies at least that surely.

    The `k` smallest and the `k` largest values are cut off; how many of `n` values lie below the
    true median is binomial with one half, so too many are cut with 2 P(X <= k - 1). Few values
    cannot be that sure: then the ends are the smallest and the largest.

    Args:
        values: At least one, independent.
        confidence: Between 0 and 1.
    """
    ordered, num = sorted(values), len(values)
    cut, below = 0, 0.0
    while cut < (num - 1) // 2:
        below += math.comb(num, cut) * 0.5**num
        if 2 * below > 1 - confidence:
            break
        cut += 1
    first = max(cut - 1, 0)
    return ordered[first], ordered[num - 1 - first]


async def spans_of_a_request(address: str, collector: str, tokens: int) -> int:
    """How many spans a request leaves, once they have all arrived."""
    name = f"probe-{os.getpid()}"
    async with AsyncClient(address) as client:
        sampling = Sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        await client.generate(list(range(3, 99)), request_id=name, sampling=sampling)
    await asyncio.sleep(_SENT_S)
    with grpc.insecure_channel(collector) as channel:
        stub = traces_pb2_grpc.TraceServiceStub(channel)
        found = stub.FindTraces(traces_pb2.FindTracesRequest(request_id=name), timeout=10)
    return len(found.spans)


def span_us(repetitions: int = 5, spans: int = 2_000) -> float:
    """Processor microseconds to begin, describe, end and export a span, without the network."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_Encoding(), max_queue_size=4 * spans))
    tracer = OtelTracer(provider, endpoint="none", clock=SystemClock())
    costs = []
    for _ in range(repetitions):
        begin = time.process_time()
        with tracer.serve("a.B/C", ()) as front:
            for number in range(spans):
                with front.child("kvstore.get", {"db.operation.name": "GET"}) as span:
                    span.set({"disagg.kv.blocks": number, "disagg.kv.bytes": number})
        provider.force_flush()
        costs.append((time.process_time() - begin) / spans * 1e6)
    tracer.close()
    return median(costs)


class _Encoding(SpanExporter):
    """Makes the bytes that would be sent."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode(spans).SerializeToString()
        return SpanExportResult.SUCCESS


def traces_at(collector: str) -> int:
    """Traces that arrived."""
    with grpc.insecure_channel(collector) as channel:
        stub = traces_pb2_grpc.TraceServiceStub(channel)
        return stub.FindTraces(traces_pb2.FindTracesRequest(), timeout=10).num_traces


def require_load(*, traces: int, spans: int, reads: int) -> None:
    """Ends the program unless there was something whose cost was measured.

    Args:
        traces: Arrived at the collector.
        spans: Of one request that was sampled.
        reads: Pages of metrics that were read meanwhile.
    """
    seen = {"traces arrived": traces, "spans of a request arrived": spans, "pages were read": reads}
    lacks = [name for name, number in seen.items() if not number]
    if lacks:
        raise SystemExit(
            f"no {', no '.join(lacks)}, so the overheads would be those of nothing; is the package "
            "disagg[trace] installed, and OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER set?"
        )


def shares(rounds: int, starts: int) -> list[int]:
    """Rounds of each start, as even as they come.

    Raises:
        SystemExit: Fewer rounds than starts, or no start.
    """
    if not 0 < starts <= rounds:
        raise SystemExit(
            f"--starts {starts} with --rounds {rounds}: every start needs a round; give 1 to "
            f"{max(rounds, 1)} starts, or more rounds"
        )
    return [rounds // starts + (number < rounds % starts) for number in range(starts)]


def order_of(start: int) -> tuple[str, ...]:
    """In which order the systems are started the n-th time; all six come before one repeats."""
    orders = list(itertools.permutations(RATIOS))
    # Backwards: so each of the three comes first in the four starts that are usual.
    return orders[-start % len(orders)]


def overheads(found: Measured) -> dict[str, dict[str, dict[str, Any]]]:
    """`overhead` and `cpu_overhead` of both systems that are compared with `off`."""
    names = [name for name in RATIOS if name != "off"]
    return {
        "overhead": {name: overhead_of(found.rates, name, more_is_better=True) for name in names},
        "cpu_overhead": {
            name: overhead_of(found.cpu_ms, name, more_is_better=False) for name in names
        },
    }


def by_start(parts: Sequence[Measured]) -> dict[str, dict[str, list[float]]]:
    """The medians of each start alone."""
    alone = [overheads(part) for part in parts]
    return {
        what: {name: [one[what][name]["median"] for one in alone] for name in alone[0][what]}
        for what in alone[0]
    }


def measure_starts(
    collector: str, rounds: Sequence[int], *, clients: int, tokens: int
) -> tuple[list[Measured], int, int]:
    """Starts the systems so many times; returns figures of each, traces, and spans of a request."""
    parts, num_traces, num_spans = [], 0, 0
    for start, share in enumerate(rounds):
        with contextlib.ExitStack() as stack:
            systems = {
                name: stack.enter_context(running(name, collector)) for name in order_of(start)
            }
            parts.append(
                asyncio.run(
                    measure(
                        {name: systems[name] for name in RATIOS},
                        rounds=share,
                        clients=clients,
                        tokens=tokens,
                        first=start * (max(rounds) + 1),
                    )
                )
            )
            if start == len(rounds) - 1:
                time.sleep(_SENT_S)  # what the last round left is still in the processes
                num_traces = traces_at(collector)
                num_spans = asyncio.run(
                    spans_of_a_request(systems["all"]["address"], collector, tokens)
                )
    return parts, num_traces, num_spans


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.telemetry", description=__doc__)
    parser.add_argument("--json", action="store_true", help="only the object, on one line")
    parser.add_argument("--rounds", type=int, default=12, help="of all starts together")
    parser.add_argument("--starts", type=int, default=4, help="how often the systems are started")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    rounds = shares(options.rounds, options.starts)
    with process("cli.traces.collector") as said:
        parts, num_traces, num_spans = measure_starts(
            said["address"], rounds, clients=options.clients, tokens=options.tokens
        )
    found = Measured.joined(parts)
    require_load(traces=num_traces, spans=num_spans, reads=found.num_reads)
    each_us = span_us()
    request_us = 1e3 * median(found.cpu_ms["off"]) * options.tokens
    totals = overheads(found)
    result = {
        "tokens_per_s": {name: round(median(values), 1) for name, values in found.rates.items()},
        "overhead": totals["overhead"],
        "cpu_ms_per_token": {
            name: round(median(values), 3) for name, values in found.cpu_ms.items()
        },
        "cpu_overhead": totals["cpu_overhead"],
        "by_start": by_start(parts),
        "spans": {
            "per_request": num_spans,
            "us": round(each_us, 1),
            "share": round(num_spans * each_us / request_us, 5),
        },
        "rounds": options.rounds,
        "starts": options.starts,
        "clients": options.clients,
        "traces": num_traces,
        "reads": found.num_reads,
        "environment": describe(SEED),
    }
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
