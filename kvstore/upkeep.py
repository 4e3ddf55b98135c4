"""The process `python -m kvstore`: a private server if none is given, and the janitor's rounds.

Any client may sweep, and several may at once; this process is for machines where nobody else does.
A store that cannot be reached is waited for: a round that fails is logged and counted, and the next
one tries. Only the end of the private server is the end of this process.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from kvstore import embedded
from kvstore.config import KvStoreConfig, parse_url
from kvstore.errors import EmbeddedUnavailable, KvStoreError, StoreUrlError
from kvstore.handoffs.leases import JanitorReport
from kvstore.measures import DropMeasures
from kvstore.store import KvStore, open_store
from runtime.build import software_version, tell_build
from runtime.clock import SystemClock
from runtime.errors import ExitCode
from runtime.logging import Form, Level, configure_logging
from runtime.masking import mask_url
from runtime.metrics import Metrics
from runtime.metrics.page import MetricsSettings, PageError, serving_page
from runtime.sections import foreign_to
from runtime.settings import Settings, SettingsError, load_process, setting
from runtime.startup import exits

logger = logging.getLogger(__name__)

PROG = "python -m kvstore"
ROLE = "store"
_NO_LAYOUT = bytes(8)  # upkeep covers hand-offs of every layout


class ServerSettings(Settings):
    """The store that is kept."""

    url: str = setting("", help="URL of the store; empty: start a private server", flag="--store")
    directory: Path | None = setting(
        None, help="where the private server keeps its socket and log", flag="--directory"
    )
    max_memory_bytes: int = setting(
        embedded.DEFAULT_MAX_MEMORY_BYTES,
        help="memory of the private server; beyond it the least recently used keys go",
        flag="--max-memory-bytes",
        ge=1 << 20,
    )


class JanitorSettings(Settings):
    """Rounds of the janitor."""

    interval_s: float = setting(5.0, help="seconds between two rounds of the janitor", gt=0)


class LogSettings(Settings):
    """Logs on standard error."""

    level: Level = setting("info", help="lowest level that is written")
    form: Form = setting("json", help="json for machines, console for people")


class UpkeepSettings(Settings):
    """Everything this process can be told."""

    server: ServerSettings = ServerSettings()
    janitor: JanitorSettings = JanitorSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()


def keep(
    store: KvStore,
    stop: threading.Event,
    *,
    interval_s: float,
    metrics: Metrics | None = None,
    check: Callable[[], None] | None = None,
) -> None:
    """Sweeps every `interval_s` seconds until `stop` is set. Never raises a library error.

    Args:
        metrics: Told what every round saw, and how it ended.
        check: Called after each round; what it raises ends the rounds.
    """
    told = Metrics(role=ROLE) if metrics is None else metrics
    drops = DropMeasures(told)
    while True:
        told.count("disagg_kv_janitor_rounds_total", outcome=_round(store, told, drops))
        if check is not None:
            check()
        if stop.wait(interval_s):
            return


def _round(store: KvStore, metrics: Metrics, drops: DropMeasures) -> str:
    """One round; returns `ok` or why it failed."""
    try:
        _tell(metrics, store.janitor())
        drops.told(store.facts())
    except KvStoreError as error:
        logger.warning("janitor: %s", error)
        return error.cause
    except Exception:
        # A bug; but nobody else frees what is left over, so the next round is tried.
        logger.exception("janitor: a round failed")
        return "internal"
    return "ok"


def _tell(metrics: Metrics, report: JanitorReport) -> None:
    if report.num_expired:
        logger.info("janitor: %d of %d hand-offs expired", report.num_expired, report.num_handoffs)
    metrics.set("disagg_kv_leases", report.num_handoffs - report.num_expired)
    metrics.set("disagg_kv_handoff_bytes", report.handoff_bytes)
    metrics.count("disagg_kv_lease_expired_total", report.num_expired, component="ticket")


@contextmanager
def kept(url: str, *, interval_s: float = 5.0, metrics: Metrics | None = None) -> Iterator[None]:
    """Sweeps the store at a URL on a thread of its own; for whoever starts a whole system.

    Args:
        metrics: Told what is found, and what this process is built from.

    Raises:
        StoreUrlError: The URL names no known backend.
    """
    config = KvStoreConfig(block_tokens=1, owner="janitor")
    store = open_store(url, config, fingerprint=_NO_LAYOUT, clock=SystemClock().now)
    if metrics is not None:
        tell_build(metrics, role=ROLE, version=software_version())
    stop = threading.Event()
    thread = threading.Thread(
        target=keep,
        args=(store, stop),
        kwargs={"interval_s": interval_s, "metrics": metrics},
        name="janitor",
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        store.close()


def run(settings: UpkeepSettings, stop: threading.Event) -> None:
    """Runs until `stop` is set; says where the store is in one JSON line on standard output.

    Raises:
        EmbeddedUnavailable: The private server cannot be started, or ended.
    """
    with ExitStack() as stack:
        url, check = settings.server.url, None
        if not url:
            server = embedded.start(
                settings.server.directory, max_memory_bytes=settings.server.max_memory_bytes
            )
            url = stack.enter_context(server).url
            check = partial(_require_running, server)
        config = KvStoreConfig(block_tokens=1, owner="janitor")
        store = open_store(url, config, fingerprint=_NO_LAYOUT, clock=SystemClock().now)
        stack.callback(store.close)
        metrics = Metrics(role=ROLE, with_aliases=settings.metrics.vllm_aliases)
        tell_build(metrics, role=ROLE, version=software_version())
        page = stack.enter_context(serving_page(metrics, settings.metrics))
        told = {"store": mask_url(url), **({"metrics": page} if page else {})}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        keep(store, stop, interval_s=settings.janitor.interval_s, metrics=metrics, check=check)


def _require_running(server: embedded.EmbeddedStore) -> None:
    """Raises EmbeddedUnavailable if the private server ended: nothing would bring it back."""
    if not server.is_running:
        raise EmbeddedUnavailable(
            f"the private server (pid {server.pid}) ended, and what it held is lost: start it again"
        )


def _check(settings: UpkeepSettings) -> None:
    """What can be told of settings alone.

    Raises:
        SettingsError: They say what no start would accept.
    """
    if settings.server.url:
        try:
            parse_url(settings.server.url)
        except StoreUrlError as error:
            raise SettingsError([str(error)]) from error


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code of the process."""
    settings = load_process(
        UpkeepSettings,
        arguments,
        prog=PROG,
        description="A private KV store, and its janitor.",
        example=f"{PROG} --directory /run/disagg-store",
        foreign_sections=foreign_to(UpkeepSettings),
        check=_check,
    ).value
    configure_logging(level=settings.log.level, form=settings.log.form, facts={"role": "store"})
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with exits(
        PROG,
        {
            EmbeddedUnavailable: ExitCode.DEPENDENCY,
            StoreUrlError: ExitCode.CONFIGURATION,
            PageError: ExitCode.CONFIGURATION,
        },
    ):
        run(settings, stop)
    return ExitCode.OK
