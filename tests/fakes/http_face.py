"""A front door with its HTTP face, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from tests.fakes.front_door import FrontDoor, front_door


@asynccontextmanager
async def faced(**settings: Any) -> AsyncIterator[tuple[FrontDoor, httpx2.AsyncClient]]:
    """A front door and a client of its HTTP face; afterwards nothing may be held."""
    http = {"port": 0, **settings.pop("http", {})}
    async with (
        front_door(http=http, **settings) as door,
        httpx2.AsyncClient(base_url=f"http://{door.http}", timeout=20.0, trust_env=False) as client,
    ):
        yield door, client
        await door.settle()
