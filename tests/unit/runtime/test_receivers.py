"""Names that stand for several receivers, which come and go."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from runtime.clock import SystemClock, system_random
from runtime.heartbeat import Heartbeat
from runtime.receivers import Receiver, Receivers, addresses_of

BOUND_S = 5.0


class Resolver:
    """Answers from a table; a name that is not in it has no answer."""

    def __init__(self, **hosts: set[str]) -> None:
        self.hosts = hosts
        self.silent: set[str] = set()
        self.looks = 0

    async def __call__(self, host: str, port: int) -> set[str]:
        del port
        self.looks += 1
        if ".." in host:
            raise UnicodeError("label empty")  # as getaddrinfo does
        if host not in self.hosts:
            raise socket.gaierror(socket.EAI_NONAME, f"{host} is unknown")
        if host in self.silent:
            raise socket.gaierror(socket.EAI_AGAIN, "no server answers")
        return self.hosts[host]


class Post:
    """Who was announced to, and whose channels are open."""

    def __init__(self) -> None:
        self.beats: list[str] = []
        self.open: set[Receiver] = set()
        self.looks: Counter[str] = Counter()

    @asynccontextmanager
    async def heartbeat(self, receiver: Receiver) -> AsyncIterator[Heartbeat]:
        async def beat() -> float:
            self.beats.append(receiver.address)
            return 10.0

        self.open.add(receiver)
        try:
            yield Heartbeat(receiver.address, beat, clock=SystemClock(), uniform=system_random())
        finally:
            self.open.discard(receiver)


@asynccontextmanager
async def announcing(
    names: list[str], resolver: Resolver, version: Callable[[], int] = lambda: 0
) -> AsyncIterator[tuple[Receivers, Post]]:
    post = Post()
    receivers = Receivers(
        names,
        post.heartbeat,
        version=version,
        resolve=resolver,
        look_s=0.001,
        on_look=lambda outcome: post.looks.update([outcome]),
    )
    async with asyncio.TaskGroup() as group, asyncio.timeout(BOUND_S):
        task = group.create_task(receivers.run())
        yield receivers, post
        task.cancel()
    assert post.open == set()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition never came true")


def addresses(post: Post) -> set[str]:
    return {receiver.address for receiver in post.open}


async def test_every_address_of_a_name_hears_of_the_member() -> None:
    resolver = Resolver(lb={"10.0.0.1", "10.0.0.2"})
    async with announcing(["lb:50051"], resolver) as (receivers, post):
        await until(lambda: len(post.beats) == 2)
        assert addresses(post) == {"10.0.0.1:50051", "10.0.0.2:50051"}
        assert {receiver.host for receiver in post.open} == {"lb"}
        resolver.hosts["lb"] = {"10.0.0.2", "10.0.0.3"}
        await until(lambda: addresses(post) == {"10.0.0.2:50051", "10.0.0.3:50051"})
        await until(lambda: "10.0.0.3:50051" in post.beats)
        assert post.beats.count("10.0.0.2:50051") == 1  # it went on as it was
        receivers.announce_now()
        await until(lambda: post.beats.count("10.0.0.2:50051") == 2)


async def test_nobody_is_forgotten_while_a_resolver_is_away() -> None:
    resolver = Resolver(lb={"10.0.0.1"})
    async with announcing(["lb:1", "late:2", "a..b:3"], resolver) as (_, post):
        await until(lambda: addresses(post) == {"10.0.0.1:1"})
        del resolver.hosts["lb"]
        looks = resolver.looks
        await until(lambda: resolver.looks > looks + 4)
        assert addresses(post) == {"10.0.0.1:1"}
        with pytest.raises(UnicodeError):
            await addresses_of("a..b", 1)
        resolver.hosts |= {"lb": set(), "late": {"fd00::1"}}
        await until(lambda: addresses(post) == {"[fd00::1]:2"})


async def test_each_look_at_a_name_is_told_by_how_it_ended() -> None:
    resolver = Resolver(lb={"10.0.0.1"}, away={"10.0.0.2"})
    resolver.silent = {"away"}
    names = ["lb:1", "127.0.0.1:2", "late:3", "away:4", "a..b:5"]
    async with announcing(names, resolver) as (_, post):
        await until(lambda: post.looks["ok"] > 3)
        assert set(post.looks) == {"ok", "unknown", "no_answer", "malformed"}
        assert max(post.looks.values()) - min(post.looks.values()) <= 1  # each at every look
        resolver.silent = set()
        await until(lambda: post.looks["ok"] > 2 * post.looks["no_answer"])
        assert addresses(post) == {"10.0.0.1:1", "127.0.0.1:2", "10.0.0.2:4"}


async def test_a_name_that_is_slow_to_resolve_delays_no_other() -> None:
    release = asyncio.Event()

    class Slow(Resolver):
        async def __call__(self, host: str, port: int) -> set[str]:
            if host == "slow":
                await release.wait()
            return await super().__call__(host, port)

    resolver = Slow(slow={"10.0.0.1"}, lb={"10.0.0.2"})
    async with announcing(["slow:1", "lb:2"], resolver) as (_, post):
        await until(lambda: addresses(post) == {"10.0.0.2:2"})
        release.set()
        await until(lambda: len(post.open) == 2)


async def test_numbers_and_other_targets_are_taken_as_they_are() -> None:
    resolver = Resolver()
    names = ["127.0.0.1:7", "[::1]:8", "unix:/run/lb.sock", "dns:///lb:9"]
    async with announcing([*names, "fd00::1:10"], resolver) as (_, post):
        await until(lambda: len(post.beats) == 5)
        assert addresses(post) == {*names, "[fd00::1]:10"}  # in brackets, as clients dial it
        assert resolver.looks == 0


async def test_channels_are_opened_anew_for_new_certificates() -> None:
    version = [1]
    async with announcing(["127.0.0.1:7"], Resolver(), lambda: version[0]) as (_, post):
        await until(lambda: {receiver.version for receiver in post.open} == {1})
        version[0] = 2
        await until(lambda: {receiver.version for receiver in post.open} == {2})


async def test_this_machine_has_one_family() -> None:
    assert set(await addresses_of("localhost", 1)) in ({"127.0.0.1"}, {"::1"})
