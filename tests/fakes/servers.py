"""Servers that tests start: Debian's Redis 7.0, with TLS, a cluster, a primary under a sentinel.

Debian's package is no requirement of the project: where `redis-server` is not on the PATH, what
needs it is skipped and says so. Cluster and sentinel run on the binary of the embedded server.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

from kvstore import embedded
from tests.fakes.stores import RawRedis

PASSWORD = "a password with spaces"


def debian_redis() -> str:
    """Debian's redis-server, or a skip that says what is missing."""
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(binary: str, directory: Path, **options: str) -> Iterator[None]:
    """A server process without persistence, in a directory of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    values = {"save": "", "appendonly": "no", "dir": str(directory), **options}
    command = [binary]
    for name, value in values.items():
        command += [f"--{name.replace('_', '-')}", value]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def wait_for(client: redis.Redis) -> None:
    """Until the server answers."""
    client.set_retry(Retry(NoBackoff(), 0))
    pause = threading.Event()
    for _ in range(500):
        with suppress(redis.ConnectionError):
            client.ping()
            return
        pause.wait(0.01)
    raise RuntimeError("the server does not answer")


@contextmanager
def raw_debian_redis() -> Iterator[RawRedis]:
    """Redis 7.0 on loopback TCP, with a password from a file."""
    binary = debian_redis()
    with tempfile.TemporaryDirectory() as name, ExitStack() as cleanup:
        directory, port = Path(name), free_port()
        secret = directory / "password"
        secret.write_text(PASSWORD + "\n")
        cleanup.enter_context(
            running(binary, directory, bind="127.0.0.1", port=str(port), requirepass=PASSWORD)
        )
        client = redis.Redis("127.0.0.1", port, password=PASSWORD)
        wait_for(client)
        raw = RawRedis(f"redis://127.0.0.1:{port}", client, password_file=str(secret))
        cleanup.callback(raw.close)
        yield raw


@contextmanager
def raw_tls_redis() -> Iterator[RawRedis]:
    """Redis 7.0 that speaks TLS alone and asks for the client's certificate."""
    binary = debian_redis()
    with tempfile.TemporaryDirectory() as name, ExitStack() as cleanup:
        directory, port = Path(name), free_port()
        make_certificates(directory)
        files = {part: str(directory / f"{part}.pem") for part in ("ca", "server", "key")}
        cleanup.enter_context(
            running(
                binary,
                directory,
                bind="127.0.0.1",
                port="0",
                tls_port=str(port),
                tls_ca_cert_file=files["ca"],
                tls_cert_file=files["server"],
                tls_key_file=files["key"],
                tls_auth_clients="yes",
            )
        )
        client = redis.Redis(
            "127.0.0.1",
            port,
            ssl=True,
            ssl_ca_certs=files["ca"],
            ssl_certfile=files["server"],
            ssl_keyfile=files["key"],
        )
        wait_for(client)
        raw = RawRedis(
            f"rediss://127.0.0.1:{port}",
            client,
            tls_ca_file=files["ca"],
            tls_cert_file=files["server"],
            tls_key_file=files["key"],
        )
        cleanup.callback(raw.close)
        yield raw


def make_certificates(directory: Path) -> None:
    """An authority and a certificate of 127.0.0.1, good for both sides of a connection."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed; it makes the certificates of this test")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=directory, check=True, capture_output=True)

    new_key = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    life = ("-days", "2")
    run(*new_key, "-keyout", "ca.key", "-out", "ca.pem", *life, "-subj", "/CN=test authority")
    run(
        *new_key,
        *("-keyout", "key.pem", "-out", "server.pem", *life, "-subj", "/CN=127.0.0.1"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-CA", "ca.pem", "-CAkey", "ca.key"),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
    )
    ssl.create_default_context(cafile=str(directory / "ca.pem"))


@contextmanager
def raw_cluster() -> Iterator[RawRedis]:
    """Three primaries that share all slots."""
    binary = str(embedded.find_binary())
    with tempfile.TemporaryDirectory() as name, ExitStack() as cleanup:
        ports = [free_port() for _ in range(3)]
        nodes = []
        for port in ports:
            cleanup.enter_context(
                running(
                    binary,
                    Path(name) / str(port),
                    bind="127.0.0.1",
                    port=str(port),
                    cluster_enabled="yes",
                    cluster_port=str(free_port()),
                )
            )
            nodes.append(cleanup.enter_context(redis.Redis("127.0.0.1", port)))
            wait_for(nodes[-1])
        assemble(nodes, ports)
        client = RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", ports[0])])
        raw = RawRedis(f"redis+cluster://127.0.0.1:{ports[0]}", client)
        cleanup.callback(raw.close)
        yield raw


class Watched:
    """A primary and its replica under one sentinel; the primary can be killed.

    Attributes:
        url: Store URL by the sentinel.
        raw: The store behind it, written past the library.
    """

    def __init__(self, cleanup: ExitStack, directory: Path, down_after_ms: int) -> None:
        binary = str(embedded.find_binary())
        self.ports = [free_port(), free_port()]
        self.primary = ExitStack()
        cleanup.enter_context(self.primary)
        where = {"bind": "127.0.0.1"}
        self.primary.enter_context(
            running(binary, directory / "0", port=str(self.ports[0]), **where)
        )
        replica = {"port": str(self.ports[1]), "replicaof": f"127.0.0.1 {self.ports[0]}"}
        cleanup.enter_context(
            running(binary, directory / "1", repl_diskless_sync_delay="0", **replica, **where)
        )
        self.nodes = [cleanup.enter_context(redis.Redis("127.0.0.1", port)) for port in self.ports]
        for node in self.nodes:
            wait_for(node)
        self.sentinel_port = free_port()
        config = directory / "sentinel.conf"
        config.write_text(
            f"bind 127.0.0.1\nport {self.sentinel_port}\ndir {directory}\n"
            f"sentinel monitor kv 127.0.0.1 {self.ports[0]} 1\n"
            f"sentinel down-after-milliseconds kv {down_after_ms}\n"
            "sentinel failover-timeout kv 2000\n"
        )
        command = [binary, str(config), "--sentinel"]
        process = cleanup.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        cleanup.callback(process.kill)
        self.sentinel = cleanup.enter_context(redis.Redis("127.0.0.1", self.sentinel_port))
        wait_for(self.sentinel)
        self._wait("replicas known", lambda: len(self._replicas()) == 1)
        self._wait("replica in step", self._is_replica_in_step)
        self.url = f"redis+sentinel://127.0.0.1:{self.sentinel_port}/kv"
        self.raw = RawRedis(self.url, self.nodes[0])
        cleanup.callback(self.raw.close)

    def kill_primary(self) -> None:
        """Ends the primary and waits until the sentinel names the replica."""
        self.primary.close()
        self.wait_for_primary(self.ports[1])

    def wait_for_primary(self, port: int) -> None:
        """Until the sentinel names that server and it takes writes."""
        self._wait("fail-over", lambda: self._primary_port() == port)
        node = self.nodes[self.ports.index(port)]
        self._wait("role", lambda: node.info("replication")["role"] == "master")

    def _primary_port(self) -> int:
        return int(self.sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", "kv")[1])

    def _replicas(self) -> list[object]:
        return list(self.sentinel.execute_command("SENTINEL REPLICAS", "kv"))

    def _is_replica_in_step(self) -> bool:
        return str(self.nodes[1].info("replication")["master_link_status"]) == "up"

    @staticmethod
    def _wait(what: str, holds: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(2000):
            if holds():
                return
            pause.wait(0.01)
        raise RuntimeError(f"not within 20 s: {what}")


@contextmanager
def watched(down_after_ms: int = 300) -> Iterator[Watched]:
    """A primary with a replica, under a sentinel that takes silence of that length for its end."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as cleanup:
        yield Watched(cleanup, Path(name), down_after_ms)


@contextmanager
def raw_watched() -> Iterator[RawRedis]:
    """The store behind a sentinel that leaves it where it is, also on a busy machine."""
    with watched(down_after_ms=600_000) as servers:
        yield servers.raw


def assemble(nodes: list[redis.Redis], ports: list[int]) -> None:
    """Shares the slots out, introduces the nodes and waits until all agree."""
    borders = [0, 5461, 10923, 16384]
    for idx, node in enumerate(nodes):
        node.execute_command("CLUSTER", "ADDSLOTSRANGE", borders[idx], borders[idx + 1] - 1)
        node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", idx + 1)
    for node in nodes[1:]:
        bus = dict(nodes[0].config_get("cluster-port"))["cluster-port"]
        node.execute_command("CLUSTER", "MEET", "127.0.0.1", ports[0], int(bus))
    pause = threading.Event()
    for _ in range(1500):
        infos = [node.execute_command("CLUSTER INFO") for node in nodes]
        agreed = [(info["cluster_state"], info["cluster_known_nodes"]) for info in infos]
        if agreed == [("ok", "3")] * 3:
            return
        pause.wait(0.01)
    raise RuntimeError(f"the nodes do not agree: {infos}")
