"""Puts and gets through Mooncake's store: one node with a segment, one client, TCP on loopback.

Runs in an interpreter that has the package `mooncake-transfer-engine-non-cuda`, and uses nothing
else. Prints one JSON object: `put_gb_s` and `get_gb_s` by value size, medians.

    PYTHON benchmarks/kv_peers/mooncake_store.py SIZES MEGABYTES REPETITIONS
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path


def free_port() -> int:
    """A TCP port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def open_store(port: int, master: int, segment_bytes: int):
    """A client of the master; with a segment it is a node."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    code = store.setup(
        f"127.0.0.1:{port}",
        "P2PHANDSHAKE",
        segment_bytes,
        256 << 20,
        "tcp",
        "",
        f"127.0.0.1:{master}",
    )
    if code:
        raise SystemExit(f"mooncake: setup gives {code}")
    return store


def serve_node(master: int) -> None:
    """Holds a segment until standard input ends."""
    store = open_store(free_port(), master, 2 << 30)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    store.close()


def measure(store, size: int, total: int, repetitions: int) -> tuple[float, float]:
    """Median GB/s of put and get of one size."""
    count = max(1, total // size)
    values = [os.urandom(size) for _ in range(count)]
    puts, gets = [], []
    for repetition in range(repetitions + 1):
        names = [f"{size}-{repetition}-{idx}" for idx in range(count)]
        start = time.perf_counter()
        for name, value in zip(names, values, strict=True):
            store.put(name, value)
        middle = time.perf_counter()
        found = [store.get(name) for name in names]
        end = time.perf_counter()
        assert found == values
        del found
        puts.append(count * size / 1e9 / (middle - start))
        gets.append(count * size / 1e9 / (end - middle))
    return statistics.median(puts[1:]), statistics.median(gets[1:])


def main() -> None:
    """Starts master and node, measures every size, prints the result."""
    if sys.argv[1] == "node":
        serve_node(int(sys.argv[2]))
        os._exit(0)
    sizes, total = [int(size) for size in sys.argv[1].split(",")], int(sys.argv[2]) << 20
    repetitions, master = int(sys.argv[3]), free_port()
    binary = Path(sys.executable).parent / "mooncake_master"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(
        [
            str(binary),
            f"--rpc_port={master}",
            "--rpc_address=127.0.0.1",
            f"--metrics_port={free_port()}",
            "--metrics_host=127.0.0.1",
        ],
        **quiet,
    ) as master_process:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", master)) == 0:
                    break
            threading.Event().wait(0.05)
        node = subprocess.Popen(
            [sys.executable, __file__, "node", str(master)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            for line in node.stdout or ():
                if line.endswith(b"ready\n"):
                    break
            store = open_store(free_port(), master, 0)
            rates = {size: measure(store, size, total, repetitions) for size in sizes}
            store.close()
        finally:
            node.kill()
            node.wait()
            master_process.kill()
    result = {
        "put_gb_s": {str(size): round(rate[0], 3) for size, rate in rates.items()},
        "get_gb_s": {str(size): round(rate[1], 3) for size, rate in rates.items()},
    }
    sys.stdout.write("\n" + json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)  # its threads do not end by themselves


if __name__ == "__main__":
    main()
