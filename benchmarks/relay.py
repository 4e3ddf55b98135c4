"""Relaying streams: our balancer beside other routers, trivial workers behind all, one run.

    python -m benchmarks.relay --json [--streams 64] [--repetitions 5] [--peer-python PYTHON]

PYTHON is the interpreter of an environment with `smg` or `sglang-router`; without it only ours is
measured. Paths: `direct` (client to the HTTP worker), `ours_http` and `ours_grpc` (client to the
balancer, which reserves, prefills and decodes over gRPC), `smg`, `sglang_router` (client to the
router, router to the HTTP worker). Prints one object on its last line:

    chunks_per_s: {PATH: value}        workers answer at once; median over repetitions
    chunks_ratio: {PEER: value}        ours_http over the peer; median of pairs in turn
    cpu_us_per_chunk: {PATH: value}    CPU time of the router alone, at full speed, requests and
                                       all; the figure that suffers least on a busy machine
    cpu_ratio: {PEER: value}           ours_http over the peer
    latency_ms: {PATH: {p50, p99}}     a request of 16 tokens, one every 40 ms; the streams begin
                                       one after the other, so that they do not ask in bursts
    added_ms: {PATH: value}            p50 of the path less p50 of `direct`
    added_ratio: {PEER: value}         ours_http over the peer
    peers_missing: [NAME]              asked for and not there
    environment

Client, workers and routers share the cores, so figures say how they compare and nothing more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc.aio

from benchmarks.environment import REPOSITORY, describe, median, ratio_of_pairs
from benchmarks.relay_load import GrpcAsker, HttpAsker, Load, run
from kvstore import embedded

SEED = 0
TOKENS, PACED_TOKENS, GAP_US = 64, 16, 40_000
OURS = "ours_http"
PEERS = {
    "smg": ("-m", "smg", "launch", "--policy", "round_robin"),
    "sglang_router": ("-m", "sglang_router.launch_router", "--policy", "round_robin"),
}
_START_S = 40.0


class Relay(NamedTuple):
    """Where a path begins, and the process between it and the worker; 0: there is none."""

    address: str
    pid: int


@contextlib.contextmanager
def started(*command: str) -> Iterator[dict[str, Any]]:
    """Runs a program of ours that says in one JSON line where it listens."""
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=REPOSITORY,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"{command[0]} did not start")
            yield json.loads(line)
        finally:
            process.terminate()
            process.wait(20)


@contextlib.contextmanager
def peer(python: str, arguments: Sequence[str], worker: str, port: int) -> Iterator[Relay]:
    """Runs another router in front of a worker.

    Raises:
        OSError: It is not there or does not answer.
    """
    address = f"127.0.0.1:{port}"
    command = [python, *arguments, "--worker-urls", f"http://{worker}"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(port + 1)]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdout=log, stderr=log, cwd=REPOSITORY) as process,
    ):
        try:
            _wait_for_answer(address, process)
            yield Relay(address, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for_answer(address: str, process: subprocess.Popen[bytes]) -> None:
    """Waits until the router streams what its worker says."""
    body = json.dumps({"model": "tiny-v4", "prompt": "x", "max_tokens": 1, "stream": True})
    request = urllib.request.Request(
        f"http://{address}/v1/completions",
        data=body.encode(),
        headers={"content-type": "application/json"},
    )
    deadline = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                if b"[DONE]" in answer.read():
                    return
        except OSError:
            pass
        if process.poll() is not None:
            raise OSError(f"the router ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise OSError(f"{address} does not answer")
        time.sleep(0.2)


def measure(
    paths: dict[str, Relay], *, streams: int, repetitions: int, requests: int, paced_requests: int
) -> dict[str, Any]:
    """Runs all paths in turn; returns the figures of the module's table."""
    fast: dict[str, list[Load]] = {name: [] for name in paths}
    paced: dict[str, list[Load]] = {name: [] for name in paths}
    used: dict[str, list[float]] = {name: [] for name, relay in paths.items() if relay.pid}
    for _ in range(repetitions):
        for name, relay in paths.items():
            for kept, tokens, gap_us, count in (
                (fast, TOKENS, 0, requests),
                (paced, PACED_TOKENS, GAP_US, paced_requests),
            ):
                before_s = cpu_s(relay.pid)
                load = asyncio.run(_load(name, relay.address, streams, count, tokens, gap_us))
                kept[name].append(load)
                if kept is fast and relay.pid:
                    used[name].append((cpu_s(relay.pid) - before_s) / load.chunks)
    return summary(fast, paced, used)


def cpu_s(pid: int) -> float:
    """CPU seconds a process has used, over all its threads; 0 for process 0."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summary(
    fast: dict[str, list[Load]], paced: dict[str, list[Load]], used: dict[str, list[float]]
) -> dict[str, Any]:
    """The figures of all runs; `used` are CPU seconds a chunk."""
    rates = {name: [load.chunks / load.wall for load in loads] for name, loads in fast.items()}
    middle = {name: [_at(load.latencies, 0.5) for load in loads] for name, loads in paced.items()}
    tail = {name: [_at(load.latencies, 0.99) for load in loads] for name, loads in paced.items()}
    added = {
        name: [(own - direct) * 1e3 for own, direct in zip(values, middle["direct"], strict=True)]
        for name, values in middle.items()
        if name != "direct"
    }
    peers = [name for name in PEERS if name in rates]
    return {
        "chunks_per_s": {name: round(median(values)) for name, values in rates.items()},
        "chunks_ratio": {
            name: round(ratio_of_pairs(rates[OURS], rates[name]), 3) for name in peers
        },
        "cpu_us_per_chunk": {name: round(median(values) * 1e6, 1) for name, values in used.items()},
        "cpu_ratio": {
            name: round(median(used[OURS]) / median(used[name]), 1)
            for name in peers
            if OURS in used and name in used and median(used[name]) > 0
        },
        "latency_ms": {
            name: {
                "p50": round(median(middle[name]) * 1e3, 1),
                "p99": round(median(tail[name]) * 1e3, 1),
            }
            for name in paced
        },
        "added_ms": {name: round(median(values), 2) for name, values in added.items()},
        "added_ratio": {
            name: round(median(added[OURS]) / median(added[name]), 2)
            for name in peers
            if median(added[name]) > 0
        },
    }


async def _load(
    name: str, address: str, streams: int, requests: int, tokens: int, gap_us: int
) -> Load:
    spread_s = tokens * gap_us / 1e6
    if name == "ours_grpc":
        async with grpc.aio.insecure_channel(address) as channel:
            return await run(
                lambda: GrpcAsker(channel, tokens=tokens, gap_us=gap_us),
                streams=streams,
                requests=requests,
                spread_s=spread_s,
            )
    return await run(
        lambda: HttpAsker(address, tokens=tokens, gap_us=gap_us),
        streams=streams,
        requests=requests,
        spread_s=spread_s,
    )


def _at(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4, help="of each stream, at full speed")
    parser.add_argument("--paced-requests", type=int, default=2, help="of each stream, paced")
    parser.add_argument("--peer-python", metavar="PYTHON", help="where other routers are")
    parser.add_argument("--peer-port", type=int, default=18_410, help="first port of theirs")
    options = parser.parse_args(arguments)
    model = REPOSITORY / "models" / "tiny-v4"
    missing: list[str] = []
    store = embedded.start()
    try:
        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            balancer = enter(
                started("balancer", "--store", store.url, "--http", "0", "--model", str(model))
            )
            enter(started("benchmarks.relay_workers", "grpc", "--balancer", balancer["address"]))
            worker = enter(started("benchmarks.relay_workers", "http"))["address"]
            pid = balancer["pid"]
            paths = {
                "direct": Relay(worker, 0),
                OURS: Relay(balancer["http"], pid),
                "ours_grpc": Relay(balancer["address"], pid),
            }
            if options.peer_python and Path(options.peer_python).exists():
                for number, (name, command) in enumerate(PEERS.items()):
                    port = options.peer_port + 10 * number
                    try:
                        paths[name] = enter(peer(options.peer_python, command, worker, port))
                    except OSError as error:
                        print(f"{name}: {error}", file=sys.stderr)
                        missing.append(name)
            else:
                missing = list(PEERS)
            found = measure(
                paths,
                streams=options.streams,
                repetitions=options.repetitions,
                requests=options.requests,
                paced_requests=options.paced_requests,
            )
    finally:
        store.stop()
    result = {**found, "peers_missing": missing, "environment": describe(SEED)}
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
