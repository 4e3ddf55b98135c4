"""What a service says about itself, so that `serving.rank` can run its ranks."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import grpc.aio

from engine.async_engine import AsyncEngine
from engine.config import EngineRole
from engine.handoff import KvLayout
from kvstore.store import KvStore
from runtime.clock import Clock
from runtime.errors import ErrorMap
from runtime.metrics import Metrics
from serving.settings import EngineProcessSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = TypeVar("S", bound=EngineProcessSettings)


async def _nothing() -> None:
    """No housekeeping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(Generic[S]):
    """What a role builds its service on; lives as long as the rank."""

    settings: S
    engine: AsyncEngine
    store: KvStore
    layout: KvLayout
    clock: Clock
    metrics: Metrics
    threads: Mapping[str, Executor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What a role serves.

    Args:
        register: Adds its servicers to a server.
        statistics: Of the path of a request, for `GetServerInfo`.
        on_tick: Housekeeping, about twice a second.
    """

    register: Callable[[grpc.aio.Server], None]
    statistics: Callable[[], "DataclassInstance"]
    on_tick: Callable[[], Awaitable[object]] = _nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Role(Generic[S]):
    """One kind of rank process.

    Args:
        kind: Of its engine; its value is the name of the role.
        prog: Name of the program.
        entry: "package.module:function", called in each rank process; ends in `serve_rank`.
        description: One line for `--help`.
        settings: Class of its settings.
        foreign_sections: Sections of other roles that a shared file may hold.
        service: Full name of what is served, for health and reflection.
        work: Full method names that are work; see `runtime.serve.Host`.
        errors: Its error table.
        threads: Sizes of the thread pools it wants, by name.
        open: Builds what is served.
    """

    kind: EngineRole
    prog: str
    entry: str
    description: str
    settings: type[S]
    foreign_sections: Sequence[str]
    service: str
    work: frozenset[str]
    errors: Callable[[], ErrorMap]
    threads: Callable[[S], Mapping[str, int]]
    open: Callable[[Parts[S]], Service]

    @property
    def name(self) -> str:
        """Such as `prefill`."""
        return self.kind.value
