"""A whole system on this machine: private store, balancer, prefill and decode groups.

Started in order, watched while they run, stopped in the opposite order: the balancer drains first,
so that nothing is asked of members that go away. Everything the parts say goes to files in one run
directory, which is removed after a clean end and kept, and named, after a bad one.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cli.errors import CommandError
from cli.local import signals
from cli.local.children import Child
from cli.local.topology import Side, Topology
from cli.output import plural, say
from runtime.clock import SystemClock
from runtime.errors import ExitCode
from runtime.masking import mask_url

if TYPE_CHECKING:
    from kvstore.embedded import EmbeddedStore

_LOOK_AGAIN_S = 0.05
_STOP_BALANCER_S = 10.0
# After a part was lost: to tell callers what became of their streams, and to close in a hurry.
_TELL_CALLERS_S = 2.0
_HURRY_S = 5.0
_STOP_MEMBERS_S = 15.0
_STOP_COLLECTOR_S = 5.0
_BALANCER_START_S = 60.0
_STORE_ANSWER_S = 5.0
_EXPORT_INTERVAL_S = 0.2
STORE_VARIABLE = "DISAGG_STORE__URL"
"""What tells every part the setting `store.url`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table of processes."""

    role: str
    name: str
    address: str
    state: str
    pid: str
    metrics: str = ""


class StartLate(CommandError):
    """The system was not ready in the time it was given."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.FAILED)


class System:
    """A running system; made by `running_system`."""

    def __init__(self, topology: Topology, directory: Path, *, start_timeout_s: float) -> None:
        self.topology = topology
        self.directory = directory
        self.address = ""
        self.http_address = ""
        self.trace_address = ""
        self.metrics_addresses: dict[str, str] = {}
        self.store_url = topology.store_url or ""
        self.children: list[Child] = []
        self._start_timeout_s = start_timeout_s
        self._store: EmbeddedStore | None = None
        self._clock = SystemClock()
        self._pause = threading.Event()

    def start(self, cleanup: ExitStack) -> None:
        """Starts everything and waits until requests can be served.

        Raises:
            CommandError: A part did not come up; with the end of its log.
        """
        if self.store_url:
            self._require_store()
        else:
            self._start_store(cleanup)
        model = ["--model", str(self.topology.model)]
        model += ["--metrics-port", "0"]
        if self.topology.has_traces:
            model += self._start_collector()
        http = [] if self.topology.http_port is None else ["--http", str(self.topology.http_port)]
        balancer = self._child("balancer", "balancer", *model, *http)
        said = self._wait_for_address(balancer, "the balancer does not listen")
        self.address, self.http_address = said["address"], said.get("http", "")
        self.metrics_addresses["balancer"] = said.get("metrics", "")
        engine = [
            "--model-kv-quantisers",
            self.topology.kv_quantisers,
            "--engine-min-redundant",
            str(self.topology.redundant),
        ]
        if self.topology.rebalance_after is not None:
            engine += ["--engine-rebalance-interval-steps", str(self.topology.rebalance_after)]
        # Both sides would take the same ports; prefill is where blocks are stored.
        silent = {"decode": ["--events-endpoint", ""]}
        for side in self._sides():
            self._child(
                side.name,
                f"{side.name}_service",
                *model,
                *engine,
                *side.flags,
                *silent.get(side.name, []),
                "--group",
                f"{side.name}-0",
                "--balancer",
                self.address,
            )
        # Behind the last child: it has threads, and a fork is safe without any.
        self._keep_store(cleanup)
        self._wait_until_ready()

    def check(self) -> None:
        """Raises CommandError if a part has ended."""
        # Before the members: what they say without it is a consequence.
        if self._store is not None and not self._store.is_running:
            raise CommandError(
                f"the private store {self.store_url} (pid {self._store.pid}) ended, and what "
                "it held is lost: start the system again, or give it a store of yours with "
                "--store URL",
                ExitCode.FAILED,
            )
        for child in self.children:
            child.check()

    def rows(self) -> list[Row]:
        """The processes and members, with the state the balancer sees."""
        from cli.local.members import list_members

        pids = {child.name: str(child.pid) for child in self.children}
        store_pid = "" if self._store is None else str(self._store.pid)
        rows = [
            Row(
                role="store",
                name="",
                address=mask_url(self.store_url),
                state="ready",
                pid=store_pid,
                metrics=self.metrics_addresses["store"],
            ),
            Row(
                role="balancer",
                name="",
                address=self.address,
                state="ready",
                pid=pids.get("balancer", ""),
                metrics=self.metrics_addresses["balancer"],
            ),
        ]
        if self.trace_address:
            rows.append(
                Row(
                    role="traces",
                    name="",
                    address=self.trace_address,
                    state="ready",
                    pid=pids.get("traces", ""),
                )
            )
        for member in list_members(self.address):
            rows.append(
                Row(
                    role=member.role,
                    name=member.name,
                    address=member.address,
                    state=member.state,
                    pid=pids.get(member.role, ""),
                    metrics=member.metrics,
                )
            )
        return rows

    def stop(self, *, is_failed: bool = False) -> None:
        """Drains and stops the parts: balancer, members, collector. Twice is harmless.

        Args:
            is_failed: A part is gone, so a balancer may wait for what never comes; it is soon
                asked again, and ends its streams.
        """
        balancers = [child for child in self.children if child.name == "balancer"]
        collectors = [child for child in self.children if child.name == "traces"]
        members = [child for child in self.children if child not in (*balancers, *collectors)]
        for group, limit_s in (
            (balancers, _STOP_BALANCER_S),
            (members, _STOP_MEMBERS_S),
            (collectors, _STOP_COLLECTOR_S),
        ):
            for child in group:
                child.ask_to_stop()
            if is_failed and group is balancers:
                for child in group:
                    if not child.wait(_TELL_CALLERS_S):
                        child.ask_to_stop()
                limit_s = min(limit_s, _HURRY_S)
            deadline = self._clock.now() + limit_s
            for child in group:
                if not child.wait(max(0.1, deadline - self._clock.now())):
                    say(f"{child.name} did not stop within {limit_s:g} s and is killed")
                    child.kill()

    def kill(self) -> None:
        """Ends everything at once."""
        for child in self.children:
            child.kill()

    def _sides(self) -> tuple[Side, Side]:
        return self.topology.prefill, self.topology.decode

    def _require_store(self) -> None:
        """The given store answers; asked before anything starts, since every part needs it."""
        from kvstore import KvStoreConfig, open_store
        from kvstore.errors import KvStoreError, StoreUrlError
        from kvstore.suitability import find_unfit

        started = self._clock.now()
        config = KvStoreConfig(block_tokens=1, owner="disagg up", timeout_s=_STORE_ANSWER_S)
        try:
            store = open_store(self.store_url, config, fingerprint=bytes(8), clock=self._clock.now)
            with closing(store):
                address = store.ping().address
                unfit = find_unfit(store.facts())
        except StoreUrlError as error:
            raise CommandError(str(error), ExitCode.CONFIGURATION) from error
        except KvStoreError as error:
            raise CommandError(str(error), ExitCode.DEPENDENCY) from error
        self._report("store", address, started)
        for problem, way_out in unfit:
            say(f"  store     {problem}: {way_out}")

    def _start_store(self, cleanup: ExitStack) -> None:
        from kvstore import embedded
        from kvstore.errors import EmbeddedUnavailable

        started = self._clock.now()
        try:
            store = embedded.start()
        except EmbeddedUnavailable as error:
            raise CommandError(str(error), ExitCode.DEPENDENCY) from error
        cleanup.callback(store.stop)
        self._store, self.store_url = store, store.url
        self._report("store", "private Valkey", started)

    def _keep_store(self, cleanup: ExitStack) -> None:
        """Reaps hand-offs that nobody released, also in a store of the user's."""
        from kvstore.errors import StoreUrlError
        from kvstore.upkeep import ROLE, kept
        from runtime.metrics import Metrics
        from runtime.metrics.page import MetricsSettings, serving_page

        metrics = Metrics(role=ROLE)
        page = cleanup.enter_context(serving_page(metrics, MetricsSettings(port=0)))
        self.metrics_addresses["store"] = page
        try:
            cleanup.enter_context(kept(self.store_url, metrics=metrics))
        except StoreUrlError as error:
            raise CommandError(str(error), ExitCode.CONFIGURATION) from error

    def _child(self, name: str, module: str, *flags: str) -> Child:
        store = {STORE_VARIABLE: self.store_url}  # it may hold a password
        child = Child(name, [module, *flags], self.directory, store)
        self.children.append(child)
        return child

    def _start_collector(self) -> list[str]:
        """Starts what keeps spans; the flags that make a process send all of its own there."""
        collector = self._child("traces", "cli.traces.collector")
        said = self._wait_for_address(collector, "the collector of traces does not listen")
        self.trace_address = said["address"]
        return [
            *("--tracing-endpoint", f"http://{self.trace_address}"),
            *("--tracing-sample-ratio", "1"),
            *("--tracing-export-interval-s", str(_EXPORT_INTERVAL_S)),
        ]

    def _wait_for_address(self, child: Child, trouble: str) -> dict[str, str]:
        """The ready line of a process that has just been started."""
        started = self._clock.now()
        said: dict[str, str] = {}

        def is_listening() -> bool:
            for line in child.out.read_text(encoding="utf-8").splitlines(keepends=True):
                if line.endswith("\n"):
                    with suppress(ValueError, TypeError):
                        said.update(json.loads(line))
            return "address" in said

        limit_s = min(_BALANCER_START_S, self._start_timeout_s)
        self._wait(is_listening, limit_s, trouble, child)
        self._report(child.name, said["address"], started)
        return said

    def _wait_until_ready(self) -> None:
        from cli.local.members import is_ready, list_members

        started = self._clock.now()
        missing = {side.name: side for side in self._sides()}

        def is_complete() -> bool:
            members = list_members(self.address)
            for role, side in list(missing.items()):
                ready = sum(m.role == role and m.state == "ready" for m in members)
                if ready >= side.engines:
                    del missing[role]
                    self._report(role, side.layout or plural(side.ranks, "rank"), started)
            return not missing and is_ready(self.address)

        self._wait(is_complete, self._start_timeout_s, "the members are not ready", None)

    def _wait(
        self, condition: Callable[[], bool], limit_s: float, what: str, blamed: Child | None
    ) -> None:
        deadline = self._clock.now() + limit_s
        while not condition():
            signals.check()
            self.check()
            if self._clock.now() > deadline:
                tails = "\n".join(
                    child.tail() for child in self.children if blamed in (None, child)
                )
                raise StartLate(f"{what} after {limit_s:g} s\n{tails}")
            self._pause.wait(_LOOK_AGAIN_S)

    def _report(self, role: str, detail: str, started: float) -> None:
        say(f"  {role:<9} {detail:<24} {self._clock.now() - started:5.2f} s")


@contextmanager
def running_system(topology: Topology, *, start_timeout_s: float = 180.0) -> Iterator[System]:
    """Starts a system, yields it ready, stops it.

    Raises:
        CommandError: It does not come up.
    """
    directory = Path(tempfile.mkdtemp(prefix="disagg-run-"))
    system = System(topology, directory, start_timeout_s=start_timeout_s)
    with ExitStack() as cleanup:
        try:
            say(f"starting {topology}")
            system.start(cleanup)
            yield system
            signals.check()
            system.check()
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):
                if system.children:
                    say(f"logs are kept in {directory}")
                else:  # nothing has started, so nothing was written
                    shutil.rmtree(directory, ignore_errors=True)
                _stop(system, is_failed=True)
                raise
            _stop(system)
            shutil.rmtree(directory, ignore_errors=True)
            raise
        _stop(system)
        shutil.rmtree(directory, ignore_errors=True)


def _stop(system: System, *, is_failed: bool = False) -> None:
    try:
        system.stop(is_failed=is_failed)
    except KeyboardInterrupt:
        say("killing everything")
        system.kill()
