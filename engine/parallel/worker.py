"""Rank processes: start them from one warm parent, watch them, stop them together.

The ranks of a group are forked from a fork server that has imported torch and the engine before
any thread or device exists, so that they share its pages and start in milliseconds. A rank that
dies takes its group down, fast and by name; a supervisor that dies takes its ranks with it.

Knows no model and no service: a rank runs the entry function it is told by name. Importing this
module loads no torch, so that a supervisor stays small; its ranks share the fork server's.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection, forkserver, reduction, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Protocol

from engine.parallel import endings
from engine.parallel.backends import require_backend
from engine.parallel.endings import ProcessHandle
from engine.parallel.shared_memory import MAX_RANKS, Segment, create_rendezvous, create_segment

if TYPE_CHECKING:
    from engine.parallel.layout import RunLayout
    from engine.parallel.ports import Ports

logger = logging.getLogger(__name__)

Option = str | int | float | bool | None

# Of malloc.h: M_MMAP_THRESHOLD (at its upper limit), M_TRIM_THRESHOLD, M_TOP_PAD.
_MALLOC_SETTINGS: Final = ((-3, 32 << 20), (-1, 1 << 30), (-2, 64 << 20))

DEFAULT_COLLECTIVE_TIMEOUT_S: Final = 30.0
DEFAULT_START_TIMEOUT_S: Final = 300.0
DEFAULT_PRELOAD: Final = ("torch", "numpy", "einops", "engine.parallel.ports", "engine.build")

# Long enough for a rank to log why it gave the group up, also on a busy machine.
_ABORT_GRACE_S: Final = 2.0
_TERMINATE_GRACE_S: Final = 1.0
_KILLED_WAIT_S: Final = 5.0
_POLL_S: Final = 0.1
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """What a rank process is told about its group. Plain data.

    Args:
        rank, num_ranks: its place; 0 <= rank < num_ranks.
        group_name: for logs and messages.
        backend: see `engine.parallel.backends`; a group of one rank needs none and ignores it.
        segment_fd: descriptor of the group's memory in this process; -1 in a group of one rank.
        rendezvous_fd: descriptor of gloo's rendezvous file; -1 unless the backend is gloo.
        collective_timeout_s: bound of every collective.
        start_timeout_s: bound of waiting for all ranks to open their ports.
    """

    rank: int = 0
    num_ranks: int = 1
    group_name: str = "local"
    backend: str = "local"
    segment_fd: int = -1
    rendezvous_fd: int = -1
    collective_timeout_s: float = DEFAULT_COLLECTIVE_TIMEOUT_S
    start_timeout_s: float = DEFAULT_START_TIMEOUT_S


def open_ports(
    context: RankContext,
    *,
    hidden: int,
    top_k: int,
    max_tokens: int,
    run: RunLayout | None = None,
) -> Ports:
    """Opens the ports of this rank: see `engine.parallel.ports.open_ports`, which this loads."""
    from engine.parallel import ports

    return ports.open_ports(context, hidden=hidden, top_k=top_k, max_tokens=max_tokens, run=run)


def run_group(
    entry: str,
    num_ranks: int,
    options: Mapping[str, Option],
    *,
    backend: str = "shm",
    group_name: str = "group",
    collective_timeout_s: float = DEFAULT_COLLECTIVE_TIMEOUT_S,
    start_timeout_s: float = DEFAULT_START_TIMEOUT_S,
    drain_timeout_s: float = 60.0,
    preload: Sequence[str] = DEFAULT_PRELOAD,
) -> int:
    """Runs `entry(context, options)` in `num_ranks` processes and returns when all have ended.

    Blocks. Called on the main thread it handles SIGTERM and SIGINT: the first asks every rank to
    drain (SIGTERM), the second kills them. On another thread signals are left alone.

    Args:
        entry: "package.module:function", called as function(RankContext, options) in each rank.
        num_ranks: processes to start.
        options: plain values handed to every rank.
        backend: transport between the ranks, "shm" or "gloo".
        group_name: for logs, process titles and messages.
        collective_timeout_s: bound of every collective between the ranks.
        start_timeout_s: bound of waiting for all ranks to open their ports.
        drain_timeout_s: bound from the first signal to the end of the last rank.
        preload: modules imported once, before the ranks are forked; those that are missing are
            left out. Read at the first group of a process only.

    Returns:
        0 when every rank ended with 0, or ended by the drain signal while draining; 1 when a
        rank failed, which is logged by name, or draining took too long; 128 + signal number
        after a second signal.

    Raises:
        BackendMissing: a backend that cannot run on this host.
        ValueError: a malformed entry, too many ranks, or an unknown backend.
    """
    if ":" not in entry:
        raise ValueError(f"entry {entry!r} is not of the form 'package.module:function'")
    if not 1 <= num_ranks <= MAX_RANKS:
        raise ValueError(f"num_ranks {num_ranks} is not in 1..{MAX_RANKS}: split the group")
    require_backend(backend)
    context = RankContext(
        num_ranks=num_ranks,
        group_name=group_name,
        backend=backend,
        collective_timeout_s=collective_timeout_s,
        start_timeout_s=start_timeout_s,
    )
    with contextlib.ExitStack() as stack:
        segment_fd = create_segment()
        stack.callback(os.close, segment_fd)
        rendezvous_fd = create_rendezvous()
        stack.callback(os.close, rendezvous_fd)
        words_fd = endings.create_last_words()
        stack.callback(os.close, words_fd)
        segment = Segment(segment_fd, num_ranks)
        stack.callback(segment.close)
        server = _start_fork_server(preload)
        signals = stack.enter_context(_signals())
        group = _Group(segment, group_name, drain_timeout_s, signals, words_fd)
        stack.callback(group.close)
        group.start(server, entry, context, dict(options), (segment_fd, rendezvous_fd, words_fd))
        return group.watch()


@dataclass(slots=True)
class _Signals:
    """Signals caught so far, and a socket that becomes readable with each."""

    caught: list[int]
    wakeup: socket.socket


class _Group:
    """The running ranks of one group, seen from their supervisor."""

    def __init__(
        self,
        segment: Segment,
        name: str,
        drain_timeout_s: float,
        signals: _Signals,
        words_fd: int,
    ) -> None:
        self._segment = segment
        self._name = name
        self._drain_timeout_s = drain_timeout_s
        self._signals = signals
        self._words_fd = words_fd
        self._processes: list[ForkServerProcess] = []
        self._handles: list[ProcessHandle] = []
        self._server = ProcessHandle(_fork_server_pid())
        self._memory_kills = endings.count_memory_kills()
        self._ended: set[int] = set()
        self._draining = False

    def start(
        self,
        server: ForkServerContext,
        entry: str,
        context: RankContext,
        options: dict[str, Option],
        descriptors: tuple[int, int, int],
    ) -> None:
        for rank in range(context.num_ranks):
            process = server.Process(
                target=_run_rank,
                args=(
                    entry,
                    replace(context, rank=rank),
                    options,
                    [_Inherited(descriptor) for descriptor in descriptors],
                ),
                name=f"{self._name}-r{rank}",
            )
            process.start()
            self._processes.append(process)
            self._handles.append(ProcessHandle(process.pid))

    def watch(self) -> int:
        """Waits for the ranks, forwards signals, and returns the group's exit code."""
        waited_s = 0.0
        while len(self._ended) < len(self._processes):
            events = self._wait(_POLL_S)
            if self._draining:
                waited_s += 0.0 if events else _POLL_S
            failure = self._reap()
            if failure is not None:
                rank, how = failure
                culprit = self._segment.aborted_by()
                because = "" if culprit in (None, rank) else f" because of rank {culprit}"
                words = endings.last_words(self._words_fd, rank)
                logger.error(
                    "group %s: rank %d %s%s; stopping the group%s",
                    self._name,
                    rank,
                    how,
                    because,
                    f": {words}" if words else "",
                )
                self._segment.abort(rank)
                self._stop_rest()
                self._report_others(rank)
                return 1
            if len(self._signals.caught) > 1:
                logger.warning("group %s: second signal, killing the ranks", self._name)
                self.kill()
                return 128 + self._signals.caught[1]
            if self._signals.caught and not self._draining:
                self._draining = True
                self._signal_rest(signal.SIGTERM)
            if waited_s >= self._drain_timeout_s:
                late = sorted(set(range(len(self._processes))) - self._ended)
                logger.error(
                    "group %s: ranks %s did not drain within %g s; killing them",
                    self._name,
                    late,
                    self._drain_timeout_s,
                )
                self.kill()
                return 1
        return 0

    def kill(self) -> None:
        """Kills what still runs and reaps it. Twice is harmless."""
        self._signal_rest(signal.SIGKILL)
        for rank, process in enumerate(self._processes):
            if rank not in self._ended:
                process.join()
                self._ended.add(rank)
        for handle in self._handles:
            handle.has_ended(_KILLED_WAIT_S)

    def close(self) -> None:
        """Kills what still runs, and lets go of all processes."""
        self.kill()
        endings.close_all([self._server, *self._handles])

    def _wait(self, timeout_s: float) -> bool:
        sentinels = [
            process.sentinel
            for rank, process in enumerate(self._processes)
            if rank not in self._ended
        ]
        ready = connection.wait([*sentinels, self._signals.wakeup], timeout_s)
        if self._signals.wakeup in ready:
            self._signals.wakeup.recv(64)
        return bool(ready)

    def _reap(self) -> tuple[int, str] | None:
        """Collects ended ranks; returns the first failure, those killed by a signal before all."""
        failures: list[tuple[int, int]] = []
        for rank, process in enumerate(self._processes):
            if rank in self._ended or process.exitcode is None:
                continue
            self._ended.add(rank)
            code = process.exitcode
            if code == 0 or (self._draining and code == -signal.SIGTERM):
                self._segment.mark_left(rank)
            else:
                failures.append((code, rank))
        if not failures:
            return None
        code, rank = min(failures)
        how = endings.describe(
            code,
            # A process lets go of its pipes a moment before it counts as ended.
            server_ended=code == endings.LOST_STATUS and self._server.has_ended(_KILLED_WAIT_S),
            memory_kills=endings.count_memory_kills() - self._memory_kills,
        )
        return rank, how

    def _report_others(self, culprit: int) -> None:
        """Logs what the other ranks died of: the first to end is not always the first to fail."""
        for rank in range(len(self._processes)):
            words = endings.last_words(self._words_fd, rank)
            if words and rank != culprit:
                logger.warning("group %s: rank %d: %s", self._name, rank, words)

    def _stop_rest(self) -> None:
        """Ends the ranks of a failed group: by the abort mark, by SIGTERM, by SIGKILL.

        Ranks see the mark in their next collective, so they fail with a message that names the
        culprit; a signal at once would hide it.
        """
        self._reap_for(_ABORT_GRACE_S)
        self._signal_rest(signal.SIGTERM)
        self._reap_for(_TERMINATE_GRACE_S)
        self.kill()

    def _reap_for(self, timeout_s: float) -> None:
        waited_s = 0.0
        while len(self._ended) < len(self._processes) and waited_s < timeout_s:
            waited_s += 0.0 if self._wait(_POLL_S) else _POLL_S
            self._reap()

    def _signal_rest(self, number: signal.Signals) -> None:
        for handle in self._handles:
            handle.send(number)


class _Inherited:
    """A descriptor that travels to a rank when its process is started; it arrives as a number."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[object, ...]:
        return _detach, (reduction.DupFd(self._descriptor),)


class _Duplicate(Protocol):
    def detach(self) -> int: ...


def _detach(duplicate: _Duplicate) -> int:
    return duplicate.detach()


def _run_rank(
    entry: str, context: RankContext, options: dict[str, Option], descriptors: Sequence[int]
) -> None:
    """First function of a rank process."""
    segment_fd, rendezvous_fd, words_fd = descriptors
    # A crash in native code leaves at least a stack.
    faulthandler.enable()
    # An interrupt at the terminal reaches the ranks too; they drain when the supervisor says so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    threading.Thread(target=_die_with_supervisor, name="supervisor-watch", daemon=True).start()
    _keep_freed_memory()
    with endings.recorded(words_fd, context.rank):
        # Not imported above: a supervisor needs no tensors.
        importlib.import_module("torch").set_num_threads(1)
        module, _, function = entry.partition(":")
        run = getattr(importlib.import_module(module), function)
        run(replace(context, segment_fd=segment_fd, rendezvous_fd=rendezvous_fd), options)


def _keep_freed_memory() -> None:
    """Tells glibc to keep large freed buffers: every step needs the same ones again.

    By default buffers above 128 KiB are mapped and unmapped each time, and their pages faulted in
    anew (prefill of 1,000 tokens of tiny-v4: 240 ms without, 188 ms with).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _MALLOC_SETTINGS:
            mallopt(parameter, value)


def _die_with_supervisor() -> None:
    """Ends this process when its supervisor is gone, however it went."""
    supervisor = multiprocessing.parent_process()
    if supervisor is not None:
        connection.wait([supervisor.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def _signals() -> Iterator[_Signals]:
    """Collects SIGTERM and SIGINT while the group runs; on other threads than main, nothing."""
    reader, writer = socket.socketpair()
    caught: list[int] = []
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        if threading.current_thread() is not threading.main_thread():
            yield _Signals(caught, reader)
            return

        def catch(number: int, frame: FrameType | None) -> None:
            del frame
            caught.append(number)

        handlers = {number: signal.signal(number, catch) for number in _FORWARDED}
        old_wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield _Signals(caught, reader)
        finally:
            signal.set_wakeup_fd(old_wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _fork_server_pid() -> int | None:
    # Any: the standard library has no public name for it.
    server: Any = forkserver
    pid: int | None = server._forkserver._forkserver_pid
    return pid


def _start_fork_server(preload: Sequence[str]) -> ForkServerContext:
    """Starts the fork server unless this process has one.

    It is started with the forwarded signals blocked, which it passes on to the ranks until they
    unblock them: a signal to the whole process group must not kill it before its ranks.
    """
    # The fork server starts it otherwise, and it unblocks these signals when it has started.
    resource_tracker.ensure_running()
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(list(preload))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return server
