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

from kvstore import open_store
from kvstore.backends.memory import MemoryBackend
from kvstore.errors import StoreDown
from kvstore.keys import lease_key
from kvstore.upkeep import UpkeepSettings, keep, kept, main
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

    rounds = Rounds(3)
    keep(make_store(Down(ManualClock())), rounds, interval_s=1.0)
    assert len(rounds.waits) == 3
    assert caplog.text.count("somewhere") == 3


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
