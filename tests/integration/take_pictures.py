"""Takes the pictures of the status page that the documentation shows.

    python tests/integration/take_pictures.py       from the root of the repository

Two systems are looked at: a small one of the bundled model, started as processes and under load,
and a balancer that hears of a cluster with 64 decode ranks through heartbeats of the real kind.
Needs a Chromium, see `tests/fakes/browser.py`, and looks best where the font Inter is installed.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "images"
sys.path[:0] = [str(ROOT), str(ROOT / "proto"), str(ROOT / "kernels")]

import httpx2  # noqa: E402
from PIL import Image  # noqa: E402

from balancer.routing.base import PlacementRequest  # noqa: E402
from tests.fakes.browser import Browser, Page, browser  # noqa: E402
from tests.fakes.clusters import Cluster  # noqa: E402
from tests.fakes.front_door import FrontDoor, front_door  # noqa: E402
from tests.fakes.systems import launched  # noqa: E402

LOAD_S = 60.0
CALLERS = 12
CLUSTER_S = 60.0
TICK_S = 0.5
LINE = "But, soft! what light through yonder window breaks? It is the east, and Juliet is the sun. "
BOUNDARIES = "[128, 512, 1536]"  # the bundled model has short contexts; classes are to be seen


async def call_again_and_again(client: httpx2.AsyncClient, number: int, end: float) -> None:
    """One caller: a prompt of some length, an answer of some length, a pause."""
    draw, loop = random.Random(number), asyncio.get_running_loop()
    while loop.time() < end:
        lines = draw.choice([1, 2, 2, 4, 8, 16, 40])
        prompt = LINE * lines if draw.random() < 0.3 else f"{draw.random()} {LINE * lines}"
        await client.post(
            "/v1/completions",
            json={"prompt": prompt, "max_tokens": draw.randint(24, 200), "ignore_eos": True},
        )
        await asyncio.sleep(draw.expovariate(2.0))


async def save(page: Page, name: str, height: int | None = None) -> None:
    """Writes a picture of 256 colours, which nobody can tell from the one it was."""
    path = PICTURES / f"{name}.png"
    await page.picture(path, height=height)
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(
            256, method=Image.Quantize.MAXCOVERAGE, kmeans=4, dither=Image.Dither.NONE
        )
    few.save(path, optimize=True)


async def take(page: Page, name: str, *, height: int | None = None) -> None:
    """A picture of the page as it is; `height` cuts it off, in pixels of the page."""
    for scheme in ("light", "dark"):
        await page.prefer(scheme)
        await asyncio.sleep(0.6)
        await save(page, f"{name}-{scheme}", height)


async def small_system(chromium: Browser, address: str) -> None:
    """The whole page under load, and a decision that was opened."""
    end = asyncio.get_running_loop().time() + LOAD_S
    async with (
        httpx2.AsyncClient(base_url=f"http://{address}", trust_env=False, timeout=120) as client,
        asyncio.TaskGroup() as callers,
    ):
        for number in range(CALLERS):
            callers.create_task(call_again_and_again(client, number, end))
        await asyncio.sleep(LOAD_S * 0.7)
        page = await chromium.open(f"http://{address}/ui")
        await page.until("document.querySelectorAll('.trip').length > 8")
        await take(page, "status")
        await page.click("#decisions-body tbody tr .open")
        await page.until("document.querySelector('#record .chosen')")
        await page.evaluate("scrollTo(0, 0)")
        await page.prefer("light")
        await save(page, "status-decision", 900)


async def large_cluster(chromium: Browser, door: FrontDoor) -> None:
    """The upper half of the page with 64 decode ranks, placed on by the real router."""
    cluster = Cluster(prefill_engines=12, decode_ranks=64, fullness=0.45)
    balancer, draw, running = door.balancer, random.Random(3), deque[PlacementRequest]()
    page = await chromium.open(f"http://{door.http}/ui")
    for tick in range(int(CLUSTER_S / TICK_S)):
        if not tick % 4:
            await cluster.announce(door.channel)
        await balancer.examine()
        await balancer.host.health.report(True, "ok")
        for number in range(draw.randint(2, 9)):
            tokens = round(draw.choices([4_000, 30_000, 120_000, 400_000], [60, 30, 9, 1])[0])
            asked = PlacementRequest(
                request_id=f"simulated-{tick:03}-{number}",
                attempt=1,
                num_tokens=round(tokens * draw.uniform(0.5, 2.0)),
                max_new_tokens=1000,
            )
            running.append(asked)
            now, placed = balancer.clock.now(), balancer.router.place(asked, balancer.clock.now())
            placement, name = placed.placement, asked.request_id
            balancer.members.assign(
                placement.prefill_id, name, asked.num_tokens, quota_s=placement.quota_s, now=now
            )
            balancer.members.assign(placement.decode_id, name, asked.num_tokens, now=now)
            balancer.tiers.begin(name, placement.length_class, asked.num_tokens, now)
        while len(running) > 40:
            name = running.popleft().request_id
            balancer.tiers.end(name)
            balancer.router.prefill_ended(name, balancer.clock.now())
            for view in balancer.members.views(balancer.clock.now()):
                balancer.members.unassign(view.member.member_id, name)
        await asyncio.sleep(TICK_S)
    await cluster.announce(door.channel)
    await asyncio.sleep(2.5)  # what was announced last is drawn, and stands still
    await take(page, "status-64-ranks", height=600)


async def main() -> None:
    """Takes them all."""
    flags = ["--routing-boundaries", BOUNDARIES]
    with launched(
        prefill_ranks=2, decode_ranks=4, http_port=0, flags={"balancer": flags}
    ) as system:
        async with browser() as chromium:
            await small_system(chromium, system.http_address)
    async with (
        browser() as chromium,
        front_door(prefills=0, decodes=0, http={"port": 0}) as door,
    ):
        await large_cluster(chromium, door)


if __name__ == "__main__":
    asyncio.run(main())
