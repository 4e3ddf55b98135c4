"""Heartbeats to whoever a list of names stands for now.

    name ──resolved every few seconds──► addresses ──► one heartbeat for each
                                            │ new: begins      │ gone: ends
                                            └ a name that cannot be resolved keeps what it had

One name may stand for several receivers (a headless service); they come and go without a restart
of the member.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from runtime.address import address_of
from runtime.heartbeat import Heartbeat
from runtime.logging import get_logger

_log = get_logger(__name__)

Resolve = Callable[[str, int], Awaitable[Iterable[str]]]
"""Addresses of a host name; OSError if there is no answer."""

_LOOK_S = 5.0
_UNKNOWN = (socket.EAI_NONAME, socket.EAI_NODATA)  # of such a name, or no address of it


@dataclass(frozen=True, slots=True, order=True)
class Receiver:
    """One place to announce to.

    Attributes:
        address: host:port, the host as a number unless the name is a target of another kind.
        host: Name it stands for, which its certificate may have.
        version: Of what its channel is made with.
    """

    address: str
    host: str
    version: int = 0


class Receivers:
    """See the module; run it in a task group.

    Args:
        names: host:port each, or another gRPC target, which is left as it is.
        open: Makes the heartbeat to a receiver, and what closes its channel.
        version: Changes when all channels should be opened anew.
        resolve: Looks a name up.
        look_s: Seconds between two looks.
        on_look: Told how each look at a name ended: `ok`, `unknown` (the resolver has no such
            name), `no_answer`, or `malformed`.
    """

    def __init__(
        self,
        names: Iterable[str],
        open: Callable[[Receiver], AbstractAsyncContextManager[Heartbeat]],
        *,
        version: Callable[[], int] = lambda: 0,
        resolve: Resolve | None = None,
        look_s: float = _LOOK_S,
        on_look: Callable[[str], None] = lambda _outcome: None,
    ) -> None:
        self._known: dict[str, frozenset[Receiver]] = {name: frozenset() for name in names}
        self._failing: set[str] = set()
        self._open = open
        self._version = version
        self._resolve = resolve or addresses_of
        self._look_s = look_s
        self._on_look = on_look
        self._running: dict[Receiver, asyncio.Task[None]] = {}
        self._heartbeats: dict[Receiver, Heartbeat] = {}

    @property
    def current(self) -> frozenset[Receiver]:
        """Who is announced to now."""
        return frozenset(self._running)

    async def run(self) -> None:
        """Announces for ever; ends only by cancellation or a bug in a heartbeat."""
        async with asyncio.TaskGroup() as group:
            # Each by itself: a name that is slow to resolve delays no other.
            for name in self._known:
                group.create_task(self._follow(name, group))

    def announce_now(self) -> None:
        """Sends the next announcement to everybody at once."""
        for heartbeat in self._heartbeats.values():
            heartbeat.announce_now()

    async def _announce(self, receiver: Receiver) -> None:
        async with self._open(receiver) as heartbeat:
            self._heartbeats[receiver] = heartbeat
            try:
                await heartbeat.run()
            finally:
                if self._heartbeats[receiver] is heartbeat:  # or it was begun again meanwhile
                    del self._heartbeats[receiver]

    async def _follow(self, name: str, group: asyncio.TaskGroup) -> None:
        while True:
            await self._look(name)
            self._reconcile(group)
            await asyncio.sleep(self._look_s)

    def _reconcile(self, group: asyncio.TaskGroup) -> None:
        """Ends and begins heartbeats, so that those run that are wanted now."""
        version = self._version()
        wanted = {
            Receiver(receiver.address, receiver.host, version)
            for found in self._known.values()
            for receiver in found
        }
        for receiver in sorted(self.current - wanted):
            _log.info("receiver.gone", receiver=receiver.address)
            self._running.pop(receiver).cancel()
        for receiver in sorted(wanted - self.current):
            _log.info("receiver.found", receiver=receiver.address)
            self._running[receiver] = group.create_task(self._announce(receiver))

    async def _look(self, name: str) -> None:
        host, _, port = name.rpartition(":")
        bare = host.strip("[]")
        if not host or not port.isdecimal() or "/" in host:
            self._known[name] = frozenset({Receiver(name, "")})
        elif _is_number(bare):
            self._known[name] = frozenset({Receiver(address_of(bare, int(port)), bare)})
        else:
            try:
                numbers = await self._resolve(bare, int(port))
            except (OSError, UnicodeError) as error:  # a malformed name is no OSError
                # Nobody is forgotten because a resolver is away.
                if name not in self._failing:
                    _log.warning("receiver.unresolved", name=name, error=str(error))
                self._failing.add(name)
                self._on_look(_cause_of(error))
                return
            self._failing.discard(name)
            self._on_look("ok")
            self._known[name] = frozenset(
                Receiver(address_of(number, int(port)), bare) for number in numbers
            )


async def addresses_of(host: str, port: int) -> Iterable[str]:
    """Addresses of a name; of one family, since both lead to the same receivers.

    Raises:
        OSError: There is no answer.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    old = {str(item[4][0]) for item in found if item[0] is socket.AF_INET}
    return old or {str(item[4][0]) for item in found if item[0] is socket.AF_INET6}


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _cause_of(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "malformed"
    is_unknown = isinstance(error, socket.gaierror) and error.errno in _UNKNOWN
    return "unknown" if is_unknown else "no_answer"
