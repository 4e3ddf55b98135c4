"""The janitor's rounds, and the process around them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvstore import embedded, open_store
from kvstore.backends.base import Facts
from kvstore.backends.memory import MemoryBackend
from kvstore.errors import EmbeddedUnavailable, StoreDown
from kvstore.keys import lease_key
from kvstore.upkeep import UpkeepSettings, keep, kept, main, run
from runtime.metrics import Metrics
from tests.fakes.stores import (
    FINGERPRINT,
    ManualClock,
    Prompt,
    RawMemory,
    make_store,
    raw_redis,
    small_config,
)

PROMPT = Prompt("r", tuple(range(14)))


class Rounds(threading.Event):
    """Stops after so many rounds, without waiting."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        self.left -= 1
        return self.left == 0


def test_a_round_reaps_what_nobody_holds() -> None:
    backend = MemoryBackend(ManualClock())
    store, raw = make_store(backend), RawMemory(backend)
    lapsed = PROMPT.hand_over(store)
    Prompt("live", (1, 2, 3)).hand_over(store)
    raw.lapse(lease_key(lapsed.handoff_id))
    rounds = Rounds(2)
    keep(store, rounds, interval_s=5.0)
    assert rounds.waits == [5.0, 5.0]
    assert [record.request_id for record in store.audit()] == ["live"]


def test_a_store_that_is_down_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    class Down(MemoryBackend):
        def audit(self) -> list[object]:  # type: ignore[override]
            raise StoreDown("somewhere", "as the test wants")

    rounds, metrics = Rounds(3), Metrics(role="store")
    keep(make_store(Down(ManualClock())), rounds, interval_s=1.0, metrics=metrics)
    assert len(rounds.waits) == 3
    assert caplog.text.count("somewhere") == 3
    assert metrics.value("disagg_kv_janitor_rounds_total", outcome="store_down") == 3
    assert metrics.value("disagg_kv_janitor_rounds_total", outcome="ok") == 0


def test_a_bug_ends_a_round_and_not_the_janitor(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryBackend):
        def facts(self) -> list[Facts]:
            raise RuntimeError("a bug")

    store, metrics = make_store(Broken(ManualClock())), Metrics(role="store")
    PROMPT.hand_over(store)
    keep(store, Rounds(2), interval_s=1.0, metrics=metrics)
    assert caplog.text.count("RuntimeError: a bug") == 2
    assert metrics.value("disagg_kv_janitor_rounds_total", outcome="internal") == 2
    assert metrics.value("disagg_kv_leases") == 1  # what the round had found by then


def test_keys_that_the_server_drops_are_counted_over_its_restart() -> None:
    told = iter([("a", 7), ("a", 9), ("b", 1), ("b", 2)])

    class Restarted(MemoryBackend):
        def facts(self) -> list[Facts]:
            run_id, evicted = next(told)
            return [{"run_id": run_id, "evicted_keys": evicted}]

    metrics = Metrics(role="store")
    keep(make_store(Restarted(ManualClock())), Rounds(4), interval_s=1.0, metrics=metrics)
    assert metrics.value("disagg_kv_evictions_total", cause="memory") == 4
    assert metrics.value("disagg_kv_janitor_rounds_total", outcome="ok") == 4


@pytest.mark.medium
def test_the_end_of_the_private_server_is_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: list[embedded.EmbeddedStore] = []
    start = embedded.start

    def started(directory: Path | None, **options: int) -> embedded.EmbeddedStore:
        servers.append(start(directory, **options))
        return servers[0]

    class Ending(Rounds):
        def wait(self, timeout: float | None = None) -> bool:
            servers[0].stop()
            return super().wait(timeout)

    monkeypatch.setattr(embedded, "start", started)
    settings = UpkeepSettings.model_validate({"server": {"directory": tmp_path}})
    with pytest.raises(EmbeddedUnavailable, match="ended, and what it held is lost"):
        run(settings, Ending(9))


def test_the_store_is_named_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    settings = UpkeepSettings.model_validate({"server": {"url": "memory://me:secret@"}})
    run(settings, Rounds(1))
    assert json.loads(capsys.readouterr().out) == {"store": "memory://me:***@"}


def test_settings_have_defaults() -> None:
    assert UpkeepSettings().janitor.interval_s == 5.0


def test_a_bad_url_is_a_configuration_error(capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        with pytest.raises(SystemExit) as caught:
            main(["--store", "nonsense://x"])
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])
    assert caught.value.code == 2
    assert "store URL has scheme 'nonsense'" in capsys.readouterr().err


@pytest.mark.medium
def test_the_process_serves_sweeps_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    flags = ["--directory", str(tmp_path), "--janitor-interval-s", "0.05"]
    with subprocess.Popen(
        [sys.executable, "-m", "kvstore", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["store"]
            store = open_store(
                url, small_config(claim_ttl_s=0.01), fingerprint=FINGERPRINT, clock=ManualClock()
            )
            PROMPT.hand_over(store)
            pause = threading.Event()
            for _ in range(500):
                # An audit is no snapshot: it may meet the hand-off half deleted.
                if not store.audit():
                    break
                pause.wait(0.01)
            assert store.audit() == []
            store.close()
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=10)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert not (tmp_path / "store.sock").exists()


@pytest.mark.medium
def test_a_kept_store_is_swept_until_the_end() -> None:
    with raw_redis() as raw:
        store = make_store(raw.backend, claim_ttl_s=0.01)
        pause = threading.Event()
        metrics = Metrics(role="store")
        with kept(raw.url, interval_s=0.02, metrics=metrics):
            assert metrics.value("disagg_build_info") == 1
            PROMPT.hand_over(store)
            for _ in range(500):
                if not store.audit():
                    break
                pause.wait(0.01)
            assert store.audit() == []
        PROMPT.hand_over(store)
        pause.wait(0.1)
        assert len(store.audit()) == 1
        assert "janitor" not in {thread.name for thread in threading.enumerate()}


def test_every_round_is_told() -> None:
    backend = MemoryBackend(ManualClock())
    store, raw, metrics = make_store(backend), RawMemory(backend), Metrics(role="store")
    lapsed = PROMPT.hand_over(store)
    Prompt("live", (1, 2, 3)).hand_over(store)
    raw.lapse(lease_key(lapsed.handoff_id))
    keep(store, Rounds(1), interval_s=5.0, metrics=metrics)
    assert metrics.value("disagg_kv_leases") == 1
    assert metrics.value("disagg_kv_handoff_bytes") > 0
    assert metrics.value("disagg_kv_lease_expired_total") == 1
