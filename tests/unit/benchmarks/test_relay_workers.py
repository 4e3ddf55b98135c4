"""The trivial workers: the HTTP one over a socket; the gRPC ones run in the test of the relay."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from benchmarks import relay_workers
from benchmarks.relay_load import HttpAsker


@pytest.mark.medium
async def test_the_http_worker_streams_so_many_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(relay_workers.serve_http())
        said = ""
        for _ in range(200):
            said += capsys.readouterr().out
            if said:
                break
            await asyncio.sleep(0.01)
        address = json.loads(said)["address"]
        asker = HttpAsker(address, tokens=5, gap_us=0)
        for _ in range(2):  # over one connection
            chunks, first = await asker.ask()
            assert chunks == 5
            assert first > 0
        asker.close()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_a_gap_is_chosen_or_none() -> None:
    assert relay_workers._gap_s(40_000) == 0.04
    assert relay_workers._gap_s(1 << 60) == 0.0


def test_members_need_somebody_to_announce_to() -> None:
    with pytest.raises(SystemExit):
        relay_workers.main(["grpc"])
