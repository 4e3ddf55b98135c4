"""redis-py clients for scripts and administration, on connections of their own.

Block replies of megabytes never delay what goes here: leases above all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import NoPermissionError, RedisClusterException
from redis.retry import Retry

from kvstore.backends.sentinel import PrimaryFinder
from kvstore.backends.transport import password_of
from kvstore.backends.wire import Node
from kvstore.config import KvStoreConfig, StoreUrl
from kvstore.errors import KvStoreError, StoreDown, StoreFull, StoreIsCluster, StoreRefused

_TRANSIENT = ("LOADING", "MASTERDOWN", "READONLY", "TRYAGAIN", "CLUSTERDOWN", "BUSY")


def open_control(
    url: StoreUrl, config: KvStoreConfig, find: PrimaryFinder | None = None
) -> redis.Redis:
    """A client of one server, or of the primary that `find` names; connects at its first command.

    A client that follows a primary looks for it anew whenever it has to connect.
    """
    options = _options(url, config)
    # One more attempt: a kept connection may have died with a restarted server.
    options |= {"retry": Retry(NoBackoff(), 1), "retry_on_error": [redis.ConnectionError]}
    if find is not None:
        # redis-py has no types here; a client of a primary is a `Redis`.
        client: redis.Redis = find.sentinels.master_for(  # type: ignore[no-untyped-call]
            url.service, db=url.database, **options
        )
        return client
    if url.scheme == "unix":
        return redis.Redis(unix_socket_path=url.path, db=url.database, **options)
    return redis.Redis(host=url.host, port=url.port, db=url.database, **options)


class ClusterControl:
    """A client of a cluster, opened at its first use: redis-py connects when it is made."""

    def __init__(self, url: StoreUrl, config: KvStoreConfig) -> None:
        self._url = url
        self._config = config
        self._client: RedisCluster | None = None

    def client(self) -> RedisCluster:
        """The client. Raises errors of redis-py."""
        if self._client is None:
            self._client = RedisCluster(
                startup_nodes=[
                    ClusterNode(self._url.host, self._url.port)  # type: ignore[no-untyped-call]
                ],
                **_options(self._url, self._config),
            )
        return self._client

    def slots(self) -> list[Node]:
        """The primary of each of the 16,384 slots, asked for anew. Raises StoreDown."""
        with translated(self._url.address):
            manager = self.client().nodes_manager
            manager.initialize()
            found = [manager.slots_cache.get(slot) for slot in range(16384)]
        nodes = [(entry[0].host, entry[0].port) for entry in found if entry]
        if len(nodes) != len(found):
            raise StoreDown(self._url.address, "the cluster does not cover all slots")
        return nodes

    def close(self) -> None:
        """Drops the connections."""
        if self._client is not None:
            self._client.close()


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Turns errors of redis-py into errors of this library."""
    try:
        yield
    except redis.AuthenticationError as error:
        # redis-py files it under lost connections; a wrong one may be one that is being rotated.
        if "invalid" not in str(error):
            raise refusal(address, "NOAUTH") from error
        raise StoreDown(address, f"it refused the password ({error})") from error
    except (redis.ConnectionError, redis.TimeoutError, RedisClusterException, OSError) as error:
        raise StoreDown(address, str(error)) from error
    except redis.RedisError as error:
        raise refusal(address, str(error), is_full=isinstance(error, redis.OutOfMemoryError)) from (
            error
        )


def refusal(address: str, text: str, *, is_full: bool = False) -> KvStoreError:
    """What an error reply of a server means."""
    if is_full or text.startswith("OOM"):
        return StoreFull(address, "its maxmemory is in use, and it may evict nothing that is left")
    if text.startswith("NOAUTH"):
        return StoreRefused(
            address, "it asks for a password; add ?password_file=PATH to the store URL"
        )
    if text.startswith("MOVED "):
        return StoreIsCluster(address)
    if text.startswith(_TRANSIENT):
        return StoreDown(address, text)
    return StoreRefused(address, text)


def require_no_cluster(client: redis.Redis, address: str) -> None:
    """Raises StoreIsCluster if the server is a node of a cluster; errors of redis-py otherwise."""
    try:
        facts = client.info("cluster")
    except NoPermissionError:
        return  # then nothing but its redirections tell
    if int(facts.get("cluster_enabled", 0)):
        raise StoreIsCluster(address)


def _options(url: StoreUrl, config: KvStoreConfig) -> dict[str, Any]:  # Any: as redis-py takes them
    options: dict[str, Any] = {
        "username": url.username or None,
        "password": password_of(url, config) or None,
        "socket_timeout": config.timeout_s,
        "socket_connect_timeout": config.timeout_s,
        "decode_responses": False,
    }
    if url.scheme.startswith("rediss"):
        options |= {
            "ssl": True,
            "ssl_ca_certs": config.tls_ca_file or None,
            "ssl_certfile": config.tls_cert_file or None,
            "ssl_keyfile": config.tls_key_file or None,
        }
    return options
