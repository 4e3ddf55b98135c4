"""Clients for scripts: what errors mean, and settings that come from files."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from kvstore.backends.control import ClusterControl, open_control, refusal, translated
from kvstore.config import parse_url
from kvstore.errors import KvStoreError, StoreDown, StoreFull, StoreIsCluster, StoreRefused
from tests.fakes.stores import small_config


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("OOM command not allowed", StoreFull),
        ("LOADING the dataset", StoreDown),
        ("CLUSTERDOWN Hash slot not served", StoreDown),
        ("NOAUTH Authentication required.", StoreRefused),
        ("MOVED 3999 127.0.0.1:6381", StoreIsCluster),
        ("ERR unknown command", StoreRefused),
    ],
)
def test_error_replies_have_their_meaning(text: str, kind: type[KvStoreError]) -> None:
    assert type(refusal("somewhere", text)) is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (redis.ConnectionError("gone"), StoreDown),
        (redis.TimeoutError("late"), StoreDown),
        (redis.AuthenticationError("Authentication required."), StoreRefused),
        (redis.AuthenticationError("HELLO must be called authenticated"), StoreRefused),
        (redis.AuthenticationError("invalid username-password pair"), StoreDown),
        (OSError("refused"), StoreDown),
        (redis.OutOfMemoryError("used memory > 'maxmemory'"), StoreFull),
        (redis.ResponseError("WRONGTYPE"), StoreRefused),
    ],
)
def test_errors_of_the_client_are_translated(error: Exception, kind: type[KvStoreError]) -> None:
    with pytest.raises(kind), translated("somewhere"):
        raise error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("NOAUTH Authentication required.", "?password_file=PATH"),
        ("MOVED 1 h:1", "redis+cluster://HOST:PORT"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "its maxmemory is in use"),
    ],
)
def test_what_a_server_refuses_is_worded_with_the_way_out(text: str, said: str) -> None:
    message = str(refusal("somewhere", text))
    assert said in message
    assert text not in message


def test_the_password_comes_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    config = small_config(password_file=str(secret))
    client = open_control(parse_url("redis://u:other@127.0.0.1:1"), config)
    assert client.get_connection_kwargs()["password"] == "s3cret"
    assert client.get_connection_kwargs()["username"] == "u"
    with pytest.raises(StoreDown), translated("somewhere"):
        open_control(parse_url("redis://127.0.0.1"), small_config(password_file="/none"))


def test_tls_verifies_with_the_given_authority() -> None:
    config = small_config(tls_ca_file="/ca.pem", tls_cert_file="/cert.pem", tls_key_file="/key.pem")
    options = open_control(parse_url("rediss://h:1"), config).get_connection_kwargs()
    assert (options["ssl_ca_certs"], options["ssl_certfile"]) == ("/ca.pem", "/cert.pem")
    assert (
        "ssl_ca_certs" not in open_control(parse_url("redis://h:1"), config).get_connection_kwargs()
    )


def test_a_cluster_that_is_not_there_is_down() -> None:
    control = ClusterControl(parse_url("redis+cluster://127.0.0.1:1"), small_config(timeout_s=0.5))
    with pytest.raises(StoreDown):
        control.slots()
    control.close()
