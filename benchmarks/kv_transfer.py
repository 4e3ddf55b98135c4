"""The KV store against its peers: puts and gets, digests, look-ups, hand-offs, many clients.

One server on a unix socket serves our library and redis-py with hiredis in turn, within one run and
with the same malloc settings on both. A busy machine only adds to a wall, so rates and ratios are
those of the quickest quarter of the rounds, and processor seconds are given beside them.

    python -m benchmarks.kv_transfer --json
    python -m benchmarks.kv_transfer --lmcache ENV/bin/python --mooncake ENV/bin/python

JSON keys: `put_vs_redis_py`, `get_vs_redis_py` (median over 256 KiB and 1 MiB of our GB/s with
digests over the better of redis-py's two ways), `digest_overhead` (wall with over wall without,
minus 1, the worse of put and get over both sizes), `transfer` (by size: GB/s and processor seconds
per GB of every way), `lookup` (by batch: milliseconds, blocks per second), `handoff` (by prompt
tokens: milliseconds without and with overlap), `clients` (by number: GB/s of all together), `peers`
(LMCache and Mooncake where an interpreter is given, with ours over the same TCP), `settings` and
`environment`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import redis

from benchmarks.environment import describe
from benchmarks.kv_handoff import measure_handoffs
from benchmarks.kv_peers import lmcache
from benchmarks.kv_workload import (
    Meter,
    OurWork,
    RedisPyWork,
    Series,
    names_of,
    open_client,
    random_payloads,
)
from kvstore import embedded

SIZES = (64 << 10, 256 << 10, 1 << 20)
JUDGED = (256 << 10, 1 << 20)
BATCHES = (16, 256, 4096)
CLIENTS = (1, 2, 4)
_TURNS = 3
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "268435456", "MALLOC_TRIM_THRESHOLD_": "1073741824"}


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints a table (or one JSON object) and returns the exit code."""
    parser = argparse.ArgumentParser(
        description="The KV store against redis-py, LMCache and Mooncake.",
        epilog="example: python -m benchmarks.kv_transfer --json",
    )
    parser.add_argument("--megabytes", type=int, default=32, help="bytes of one round (32)")
    parser.add_argument("--repetitions", type=int, default=21, help="rounds (21)")
    parser.add_argument(
        "--tokens", type=int, nargs="*", default=[1024, 8192, 32768, 131072],
        help="prompt lengths of hand-offs (1024 8192 32768 131072)",
    )  # fmt: skip
    parser.add_argument("--lmcache", metavar="PYTHON", help="interpreter that has lmcache")
    parser.add_argument("--mooncake", metavar="PYTHON", help="interpreter that has mooncake")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    given = parser.parse_args(arguments)
    if any(name not in os.environ for name in MALLOC):
        # glibc reads these when a process starts; ours and the peer's settings are the same.
        command = [sys.executable, "-m", "benchmarks.kv_transfer", *(arguments or sys.argv[1:])]
        return subprocess.run(command, env={**os.environ, **MALLOC}, check=False).returncode

    def say(line: str) -> None:
        print(line, file=sys.stderr if given.json else sys.stdout, flush=True)

    with embedded.start() as server:
        transfer, ratios = {}, {}
        for size in SIZES:
            transfer[size], ratios[size] = measure_transfer(server, size, given)
            for line in rows_of(size, transfer[size]):
                say(line)
        lookup = {batch: measure_lookup(server.url, batch) for batch in BATCHES}
        for batch, row in lookup.items():
            say(f"look-up of {batch:>5} hashes: {row['ms_p50']:8.3f} ms (best {row['ms_best']})")
        clients = {count: measure_clients(server.url, count, given) for count in CLIENTS}
        for count, row in clients.items():
            say(
                f"{count} writers {row['put_gb_s']:.2f} GB/s, {count} readers {row['get_gb_s']:.2f}"
            )
        handoff = {}
        for tokens in given.tokens:
            handoff[tokens] = measure_handoffs(server.url, tokens, given.seed)
            say(f"hand-off of {tokens:>7} tokens: {handoff[tokens]}")
    peers = measure_peers(given, say)
    judged = [ratios[size] for size in JUDGED]
    result = {
        "benchmark": "kv_transfer",
        "put_vs_redis_py": round(statistics.median(row["put"] for row in judged), 3),
        "get_vs_redis_py": round(statistics.median(row["get"] for row in judged), 3),
        "digest_overhead": round(
            max(
                statistics.median(row["put_digest"] for row in judged),
                statistics.median(row["get_digest"] for row in judged),
            )
            - 1,
            4,
        ),
        "ratios": {str(size): row for size, row in ratios.items()},
        "transfer": transfer,
        "lookup": lookup,
        "handoff": handoff,
        "clients": clients,
        "peers": peers,
        "settings": {"sizes": SIZES, "malloc": MALLOC, **vars(given)},
        "environment": describe(given.seed),
    }
    for name in ("put_vs_redis_py", "get_vs_redis_py", "digest_overhead"):
        say(f"{name} {result[name]}")
    if given.json:
        print(json.dumps(result))
    return 0


def measure_transfer(
    server: embedded.EmbeddedStore, size: int, given: argparse.Namespace
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Rates of every way by name, and the ratios of this size."""
    total = given.megabytes << 20
    payloads = random_payloads(total // size, size, given.seed)
    names = names_of(len(payloads), size)
    store = open_client(server.url)
    client = redis.Redis(unix_socket_path=server.url.removeprefix("unix://"))
    ours, peer = OurWork(store, names, payloads), RedisPyWork(client, names, payloads)
    meter = Meter(server.pid, total)
    ways = (
        ("", ours.put, ours.get),
        ("_plain", ours.put_plain, ours.get_plain),
        ("_redis_py", peer.put_single, peer.get_single),
        ("_redis_py_pipelined", peer.put_pipelined, peer.get_pipelined),
    )
    for repetition in range(given.repetitions + 1):
        # Every second round goes the other way, so that no way always follows the same one.
        for name, put, get in ways if repetition % 2 else ways[::-1]:
            client.flushall()
            meter.measure(f"put{name}", put, keep=repetition > 0)
            meter.measure(f"get{name}", get, keep=repetition > 0)
    client.flushall()
    client.close()
    store.close()
    rates = {name: rates_of(series) for name, series in meter.series.items()}
    return rates, ratios_of({name: quick(series.wall) for name, series in meter.series.items()})


def quick(values: Sequence[float]) -> float:
    """First quartile of repeated times."""
    return sorted(values)[len(values) // 4]


def rates_of(series: Series) -> dict[str, float]:
    """Figures of one way of moving bytes."""
    return {
        "gb_s": round(1 / quick(series.wall), 3),
        "gb_s_p50": round(1 / statistics.median(series.wall), 3),
        "client_cpu_s_per_gb": round(quick(series.client), 3),
        "server_cpu_s_per_gb": round(quick(series.server), 3),
    }


def ratios_of(walls: dict[str, float]) -> dict[str, float]:
    """Ours against the better of the peer's two ways, and with digests against without."""
    ratios = {}
    for kind in ("put", "get"):
        peer = min(walls[f"{kind}_redis_py"], walls[f"{kind}_redis_py_pipelined"])
        ratios[kind] = round(peer / walls[kind], 3)
        ratios[f"{kind}_digest"] = round(walls[kind] / walls[f"{kind}_plain"], 4)
    return ratios


def rows_of(size: int, rates: dict[str, dict[str, float]]) -> Iterator[str]:
    """Lines of the table of one size."""
    for name, row in rates.items():
        yield (
            f"{size >> 10:>5} KiB {name:<23} {row['gb_s']:6.2f} GB/s (median "
            f"{row['gb_s_p50']:.2f}), processor s/GB: client {row['client_cpu_s_per_gb']:.3f}, "
            f"server {row['server_cpu_s_per_gb']:.3f}"
        )


def measure_lookup(url: str, batch: int, repetitions: int = 41) -> dict[str, float]:
    """Look-up of a chain that is there as a whole, with the state of its last block."""
    store = open_client(url)
    names = names_of(batch, batch)
    store.put_blocks([(name, b"block") for name in names], attempt=1)
    store.put_state(names[-1], b"state", attempt=1)
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        match = store.lookup(names)
        times.append(time.perf_counter() - start)
        assert match.resume_blocks == batch
    store.close()
    middle = statistics.median(times)
    return {
        "ms_p50": round(1e3 * middle, 3),
        "ms_best": round(1e3 * min(times), 3),
        "blocks_per_s": round(batch / middle),
    }


def measure_clients(url: str, count: int, given: argparse.Namespace) -> dict[str, float]:
    """GB/s of several writers, then readers at once: threads of one client, own connections."""
    size, total = 256 << 10, given.megabytes << 20
    store = open_client(url)
    payloads = random_payloads(total // size, size, given.seed)
    names = [names_of(len(payloads), 100 + number) for number in range(count)]
    works = [OurWork(store, part, payloads) for part in names]
    rates: dict[str, list[float]] = {"put_gb_s": [], "get_gb_s": []}
    with redis.Redis(unix_socket_path=url.removeprefix("unix://")) as client:
        with ThreadPoolExecutor(count) as pool:
            for _ in range(max(3, given.repetitions // 3)):
                client.flushall()
                for kind, calls in (
                    ("put_gb_s", [work.put for work in works]),
                    ("get_gb_s", [work.get for work in works]),
                ):
                    start = time.perf_counter()
                    for done in [pool.submit(call) for call in calls]:
                        done.result()
                    rates[kind].append(count * total / 1e9 / (time.perf_counter() - start))
        client.flushall()
    store.close()
    return {kind: round(statistics.median(values), 3) for kind, values in rates.items()}


def measure_peers(given: argparse.Namespace, say: Callable[[str], None]) -> dict[str, object]:
    """LMCache and Mooncake where an interpreter was given; ours over TCP beside LMCache."""
    peers: dict[str, object] = {}
    if given.lmcache:
        with tcp_server() as (port, pid):
            for size in JUDGED:
                peers[f"lmcache_{size}"] = measure_lmcache(given, port, pid, size)
    if given.mooncake:
        script = Path(__file__).parent / "kv_peers" / "mooncake_store.py"
        sizes = ",".join(map(str, JUDGED))
        done = subprocess.run(
            [given.mooncake, script, sizes, str(given.megabytes), str(given.repetitions)],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = done.stdout.strip().splitlines()
        peers["mooncake"] = (
            json.loads(lines[-1]) if not done.returncode and lines else done.stderr[-500:]
        )
    for name, row in peers.items():
        say(f"{name}: {row}")
    return peers


def measure_lmcache(given: argparse.Namespace, port: int, pid: int, size: int) -> dict[str, float]:
    """LMCache and ours in turn over the same TCP; the best turn of each."""
    rounds, total = max(3, given.repetitions // _TURNS), given.megabytes << 20
    theirs, ours = [], []
    for _ in range(_TURNS):
        theirs.append(lmcache.measure(given.lmcache, port, size, total, rounds))
        ours.append(measure_over_tcp(port, pid, size, given))
    put, get = (max(turn[kind] for turn in theirs) for kind in (0, 1))
    our_put, our_get = (max(turn[kind] for turn in ours) for kind in ("put", "get"))
    return {
        "put_gb_s": round(put, 3),
        "get_gb_s": round(get, 3),
        "ours_tcp_put_gb_s": our_put,
        "ours_tcp_get_gb_s": our_get,
        "put_vs_lmcache": round(our_put / put, 3),
        "get_vs_lmcache": round(our_get / get, 3),
    }


def measure_over_tcp(port: int, pid: int, size: int, given: argparse.Namespace) -> dict[str, float]:
    """Our medians in GB/s over loopback TCP."""
    total = given.megabytes << 20
    payloads = random_payloads(total // size, size, given.seed)
    store = open_client(f"redis://127.0.0.1:{port}")
    work = OurWork(store, names_of(len(payloads), size), payloads)
    meter = Meter(pid, total)
    with redis.Redis(port=port) as client:
        for repetition in range(max(3, given.repetitions // _TURNS) + 1):
            client.flushall()
            meter.measure("put", work.put, keep=repetition > 0)
            meter.measure("get", work.get, keep=repetition > 0)
    store.close()
    return {name: round(1 / quick(series.wall), 3) for name, series in meter.series.items()}


@contextmanager
def tcp_server() -> Iterator[tuple[int, int]]:
    """The private server's binary on a TCP port of loopback: port and process id."""
    with tempfile.TemporaryDirectory() as directory:
        port = 20_000 + os.getpid() % 20_000
        options = {"port": port, "bind": "127.0.0.1", "save": "", "dir": directory}
        command = [str(embedded.find_binary())]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                with redis.Redis(port=port) as client:
                    for _ in range(100):
                        try:
                            client.ping()
                            break
                        except redis.ConnectionError:
                            threading.Event().wait(0.05)
                yield port, process.pid
            finally:
                process.terminate()


if __name__ == "__main__":
    sys.exit(main())
