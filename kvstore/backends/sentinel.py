"""A primary that sentinels watch: where it is now, and a wire that follows it.

A connection is opened to whatever server the sentinels name at that moment. After a fail-over the
old connections break, or their server says that it only replicates; either is one `StoreDown`, and
the next call goes to the new primary. The new one may lack what was written last, and until the old
one learns of its demotion it still takes writes that will be lost: the store is a cache, so that is
a missing block, which readers recompute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from kvstore.backends.pool import RespPool
from kvstore.backends.resp import Reply, ReplyError
from kvstore.backends.wire import Job, Keyed, run_on
from kvstore.config import KvStoreConfig, StoreUrl
from kvstore.errors import StoreDown

# Replies of a server that is not the primary any more.
_DEMOTED = ("READONLY", "MASTERDOWN")

_States = dict[str, dict[str, Any]]  # Any: as redis-py parses them


class _Sentinels(Sentinel):
    """Says in words why there is no primary; redis-py's text holds its clients' whole settings."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Address of the primary. Raises MasterNotFoundError."""
        silent = []
        for sentinel in list(self.sentinels):
            try:
                state = cast(_States, sentinel.sentinel_masters()).get(service_name)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                silent.append(_cause(error))
                continue
            if state and self.check_master_state(state, service_name):  # type: ignore[no-untyped-call]
                # The next question goes to one that knows.
                others = [other for other in self.sentinels if other is not sentinel]
                self.sentinels = [sentinel, *others]
                return state["ip"], state["port"]
        asked = len(self.sentinels)
        if len(silent) == asked:
            causes = ", ".join(dict.fromkeys(silent))
            raise MasterNotFoundError(f"no sentinel answers ({causes})")
        heard = f", {len(silent)} of {asked} sentinels do not answer" if silent else ""
        raise MasterNotFoundError(f"no sentinel knows a primary {service_name!r} that is up{heard}")


def _cause(error: Exception) -> str:
    """What the operating system said, if it did."""
    inner = error.__cause__ or error.__context__
    text = inner.strerror if isinstance(inner, OSError) else None
    return (text or str(error) or type(error).__name__).rstrip(".").lower()


class PrimaryFinder:
    """Asks the sentinels of a URL, one after the other, for the primary.

    Args:
        url: With `sentinels` and `service`.
        config: `timeout_s` bounds each question.
    """

    def __init__(self, url: StoreUrl, config: KvStoreConfig) -> None:
        self._url = url
        self._sentinels = _Sentinels(  # type: ignore[no-untyped-call]
            list(url.sentinels),
            sentinel_kwargs={
                "socket_timeout": config.timeout_s,
                "socket_connect_timeout": config.timeout_s,
                "retry": Retry(NoBackoff(), 0),
            },
        )

    @property
    def sentinels(self) -> Sentinel:
        """The client of the sentinels."""
        return self._sentinels

    def __call__(self) -> StoreUrl:
        """URL of the server that is the primary now.

        Raises:
            StoreDown: No sentinel answers, or none knows a primary that is up.
        """
        try:
            host, port = self._sentinels.discover_master(self._url.service)
        except MasterNotFoundError as error:
            raise StoreDown(self._url.address, str(error)) from error
        except redis.RedisError as error:
            raise StoreDown(self._url.address, f"the sentinels do not answer: {error}") from error
        scheme = self._url.scheme.removesuffix("+sentinel")
        return replace(self._url, scheme=scheme, host=str(host), port=int(port), sentinels=())

    def close(self) -> None:
        """Drops the connections to the sentinels."""
        for sentinel in self._sentinels.sentinels:
            sentinel.close()


class SentinelWire:
    """The primary of the moment. A `Wire`."""

    def __init__(self, url: StoreUrl, config: KvStoreConfig, find: Callable[[], StoreUrl]) -> None:
        self._pool = RespPool(url, config, locate=find)

    def run(self, commands: Iterable[Keyed], job: Job) -> None:
        """See `Wire`."""
        is_demoted = False

        def take(idx: int, reply: Reply | ReplyError) -> None:
            nonlocal is_demoted
            if isinstance(reply, ReplyError) and str(reply).startswith(_DEMOTED):
                is_demoted = True
            job.on_reply(idx, reply)

        try:
            run_on(
                self._pool, (item.command for item in commands), None, replace(job, on_reply=take)
            )
        finally:
            if is_demoted:
                self._pool.drop_idle()

    def close(self) -> None:
        """See `Wire`."""
        self._pool.close()
