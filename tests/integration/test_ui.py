"""The status page of a running system: what it says over HTTP, and what a browser makes of it.

The first tests need no browser. The others start a headless Chromium and are skipped, with the
reason, where there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest

from cli.local.launcher import System
from cli.main import main
from tests.fakes.browser import browser
from tests.fakes.clusters import Cluster
from tests.fakes.front_door import front_door
from tests.fakes.holdings import nothing_is_held
from tests.fakes.http_face import faced
from tests.fakes.systems import launched

pytestmark = [pytest.mark.medium, pytest.mark.timeout(200)]

PROMPT = "ROMEO: But, soft! what light through yonder window breaks? " * 3
DRAWN = "document.documentElement.dataset.drawn"


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with launched(prefill_ranks=1, decode_ranks=2, http_port=0) as running:
        yield running


async def complete(client: httpx2.AsyncClient, name: str, max_tokens: int = 12) -> None:
    answer = await client.post(
        "/v1/completions",
        json={"prompt": f"{PROMPT}{name}", "max_tokens": max_tokens, "ignore_eos": True},
        headers={"x-request-id": name},
    )
    assert answer.status_code == 200, answer.text


@contextlib.asynccontextmanager
async def client_of(system: System) -> AsyncIterator[httpx2.AsyncClient]:
    base = f"http://{system.http_address}"
    async with httpx2.AsyncClient(base_url=base, trust_env=False, timeout=60) as client:
        yield client


async def fresh(client: httpx2.AsyncClient) -> Any:
    """A state that is not older than the question."""
    await asyncio.sleep(0.5)
    return (await client.get("/ui/state.json")).json()


async def test_the_state_knows_the_requests_that_ended(
    system: System, capsys: pytest.CaptureFixture[str]
) -> None:
    async with client_of(system) as client:
        await asyncio.gather(*(complete(client, f"state-{i}") for i in range(4)))
        await nothing_is_held(system)
        state = await fresh(client)
        assert state["health"] == {"ready": True, "draining": False, "why": ""}
        assert state["about"]["model"] == "tiny-v4"
        assert (state["prefill"]["ready"], state["decode"]["ready"]) == (1, 2)
        assert state["decode"]["members"]["requests"] == [0, 0]
        assert state["requests"]["ended"] >= 4
        trips = {trip["request_id"]: trip for trip in state["trips"]}
        for name in (f"state-{i}" for i in range(4)):
            trip = trips[name]
            assert (trip["outcome"], trip["generated_tokens"]) == ("length", 12)
            parts = {state["phases"][number]: length for number, _, length in trip["parts"]}
            assert {"compute", "publish", "fetch"} <= parts.keys()
            _, begin, length = trip["parts"][-1]
            assert 0 < trip["first_token_us"] < begin + length <= trip["total_us"]
            assert trip["fetched_bytes"] > 0
        assert {f"state-{i}" for i in range(4)} <= {d["request_id"] for d in state["decisions"]}
        assert state["store"]["reachable"]
        # The record is the one that the command prints.
        told = (await client.get("/ui/decisions/state-0?what_if=1")).json()
    explain = ["explain", "state-0", "--address", system.address, "--what-if", "--json"]
    assert await asyncio.to_thread(main, explain) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    for decision in (*told["decisions"], *printed["decisions"]):
        assert decision.pop("age_s") > 0
    assert told == printed


async def test_a_browser_shows_what_the_state_says(system: System) -> None:
    async with client_of(system) as client, browser() as chromium:
        page = await chromium.open(f"http://{system.http_address}/ui")
        await page.until(f"{DRAWN} > 0")
        # Under load, live figures are on the page.
        load = [asyncio.create_task(complete(client, f"load-{i}", 160)) for i in range(3)]
        await page.until("document.querySelector('#tile-running').textContent === '3'")
        await page.until(
            "[...document.querySelectorAll('.map.requests .rank')]"
            ".reduce((sum, rank) => sum + Number(rank.textContent), 0) === 3"
        )
        await asyncio.gather(*load)
        await nothing_is_held(system)
        # At rest, the page and the state agree number by number.
        state = await fresh(client)
        await page.until("document.querySelector('#tile-running').textContent === '0'")
        assert await page.text("#health") == "Serving"
        assert await page.text("#tile-prefill") == "1 of 1"
        assert await page.text("#tile-decode") == "2 of 2"
        for selector, key, listed in (
            ("#trips-body tbody tr", "request_id", state["trips"]),
            ("#decisions-body tbody tr", "request_id", state["decisions"]),
        ):
            rows = await page.evaluate(
                f"[...document.querySelectorAll({selector!r})].map(row => row.dataset.request)"
            )
            assert rows == [item[key] for item in listed]
        tokens = await page.evaluate(
            "[...document.querySelectorAll('.trip')].map(row => row.cells[4].textContent)"
        )
        assert tokens == [
            f"{trip['prompt_tokens']} → {trip['generated_tokens']}" for trip in state["trips"]
        ]
        backlog = "[...document.querySelectorAll('.classes .backlog')].map(e => e.textContent)"
        assert await page.evaluate(backlog) == [str(c["backlog_tokens"]) for c in state["classes"]]

        # A decision opens with everything that `disagg explain` tells, and closes again.
        chosen = state["decisions"][0]
        await page.click("#decisions-body tbody tr .open")
        await page.until("document.querySelector('#record .chosen')")
        assert await page.text("#record-title") == f"Request {chosen['request_id']}"
        record = (
            await client.get(f"/ui/decisions/{chosen['request_id']}", params={"what_if": 1})
        ).json()
        text = await page.text("#record-body")
        for decision in record["decisions"]:
            assert decision["reason"] in text
            assert "gives the same choice again" in text
            for side in (decision["prefill"], decision["decode"]):
                assert all(member["member_id"] in text for member in side["considered"])
            assert "What would change the choice" in text
        await page.press("Escape")
        await page.until("!document.querySelector('#record').open")

        assert page.errors == []
        origin = f"http://{system.http_address}/ui"
        assert page.requests
        assert [url for url in page.requests if not url.startswith(origin)] == []


async def test_many_ranks_none_and_a_balancer_that_went_away() -> None:
    async with contextlib.AsyncExitStack() as stack, browser() as chromium:
        door = await stack.enter_async_context(front_door(prefills=0, decodes=0, http={"port": 0}))
        page = await chromium.open(f"http://{door.http}/ui")
        await page.until(f"{DRAWN} > 0")
        for role in ("prefill", "decode"):
            text = await page.text(f"#{role}-body")
            assert f"No {role} member has announced itself" in text
            assert f"python -m {role}_service" in text
        assert "Not serving: no prefill member" in await page.text("#health")

        cluster = Cluster(prefill_engines=6, decode_ranks=1018)
        await cluster.announce(door.channel)
        ranks = "document.querySelectorAll('.map.kv .rank').length"
        await page.until(f"{ranks} === 1018")
        requests = await page.evaluate(
            "(() => { const shown = document.querySelector('#decode-note').textContent;"
            " return shown.split(' ')[0]; })()"
        )
        assert float(requests.replace("K", "e3").replace(",", "")) == pytest.approx(
            cluster.num_requests, rel=0.05
        )
        for width in (1280, 800, 420):
            await page.resize(width)
            assert await page.evaluate("document.documentElement.scrollWidth") == width
        # Keys tell one rank after the other.
        await page.evaluate("document.querySelector('.heat').focus()")
        for _ in range(3):
            await page.press("ArrowRight")
        assert (await page.text("#readout")).startswith(cluster.decode_ids[2])

        assert page.errors == []
        await stack.aclose()
        await page.until("!document.querySelector('#banner').hidden")
        assert "Not reachable since" in await page.text("#banner")
        assert "what is shown is from before" in await page.text("#banner")
        assert await page.evaluate(ranks) == 1018


async def test_a_person_types_the_key(tmp_path: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{'o' * 32}\ntenant {'t' * 32}\n")
    async with faced(auth={"keys_file": str(keys)}) as (door, _), browser() as chromium:
        page = await chromium.open(f"http://{door.http}/ui")
        for key, hint in (("t" * 32, "this key does not open"), ("x" * 32, "an API key is needed")):
            await page.until("!document.querySelector('#key').hidden")
            await page.evaluate(f"document.querySelector('#key-text').value = '{key}'")
            await page.click("#key button")
            await page.until(f"document.querySelector('#key-hint').textContent.includes('{hint}')")
        await page.evaluate(f"document.querySelector('#key-text').value = '{'o' * 32}'")
        await page.click("#key button")
        await page.until(f"{DRAWN} > 0")
        assert await page.evaluate("document.querySelector('#key').hidden")
