"""Settings refuse what cannot work, and URLs say where the store is without its secrets."""

import pytest

from kvstore.config import KvStoreConfig, parse_url, with_files
from kvstore.errors import StoreUrlError


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_tokens": 0}, ["block_tokens", "0"]),
        ({"segment_bytes": 0}, ["segment_bytes", "0"]),
        ({"segment_bytes": (4 << 20) + 1}, ["segment_bytes", "4194304"]),
        ({"cache_ttl_s": 0.0}, ["cache_ttl_s"]),
        ({"discard_after_s": float("nan")}, ["discard_after_s", "nan"]),
        ({"discard_after_s": 60.5}, ["discard_after_s", "60.5", "at most 60"]),
        ({"lease_s": 700.0}, ["lease_s (700.0)", "handoff_ttl_s (600.0)"]),
        ({"claim_ttl_s": 601.0}, ["claim_ttl_s (601.0)", "handoff_ttl_s (600.0)"]),
        ({"timeout_s": 0.0}, ["timeout_s", "0"]),
        ({"max_connections": 0}, ["max_connections (0)"]),
        ({"pipeline_depth": 0}, ["pipeline_depth", "(0)"]),
    ],
)
def test_bad_values_are_named(change: dict[str, float], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        KvStoreConfig(**{"block_tokens": 128, **change})  # type: ignore[arg-type]
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("url", "scheme", "address", "database"),
    [
        ("memory://", "memory", "memory", 0),
        ("unix:///run/store.sock", "unix", "/run/store.sock", 0),
        ("unix:///run/my%20store.sock?db=3", "unix", "/run/my store.sock", 3),
        ("redis://host", "redis", "host:6379", 0),
        ("redis://user:secret@host:7000/2", "redis", "host:7000", 2),
        ("rediss://[::1]:7001", "rediss", "[::1]:7001", 0),
        ("redis+sentinel://one/kv", "redis+sentinel", "kv by one:26379", 0),
        (
            "rediss+sentinel://user:secret@one:7000,two,[::1]:7001/kv/2",
            "rediss+sentinel",
            "kv by one:7000,two:26379,[::1]:7001",
            2,
        ),
    ],
)
def test_urls_are_taken_apart(url: str, scheme: str, address: str, database: int) -> None:
    parsed = parse_url(url)
    assert (parsed.scheme, parsed.address, parsed.database) == (scheme, address, database)


def test_secrets_stay_out_of_texts() -> None:
    parsed = parse_url("redis://user:p%40ss@host")
    assert (parsed.username, parsed.password) == ("user", "p@ss")
    assert "p@ss" not in repr(parsed)
    assert "p@ss" not in parsed.address


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:top/secret@h",
        "redis://u:12/secret@h",
        "redis://u:12?secret@h",
        "redis://u:12?secret@h=1",
        "redis://u:12#secret@h",
        "redis://u:12/secret#x@h",
        "redis+sentinel://u:top/secret@one,two/kv",
        "rediss+cluster://u:12/secret@h",
        "redis://u:secret[x@h",
        "redis://u:\u2100secret@h",
        "redis://h?password=secret",
        "memory://?password=secret",
    ],
)
def test_no_message_shows_a_piece_of_a_password(url: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)
    assert "top" not in str(caught.value)
    assert "password" in str(caught.value)  # and the way out


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://host",
        "/run/store.sock",
        "unix://",
        "redis://",
        "redis://host:port",
        "redis://[::1",
        "redis://host#",
        "redis://host:99999",
        "redis://host/x",
        "unix:///a?db=-1",
        "redis://host/123456",
        "redis+sentinel://one",
        "redis+sentinel://one,/kv",
        "redis+sentinel://one:port/kv",
        "redis+sentinel://one/kv/x",
    ],
)
def test_bad_urls_say_what_is_wrong(url: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        parse_url(url)
    assert "store URL" in str(caught.value)


def test_urls_name_files_that_become_settings() -> None:
    url = parse_url(
        "rediss://h:1/2?tls_ca_file=/ca.pem&password_file=/run/secret%20file&integrity_key_file=/k"
    )
    assert url.database == 2
    config = with_files(KvStoreConfig(block_tokens=4), url)
    assert (config.tls_ca_file, config.password_file) == ("/ca.pem", "/run/secret file")
    assert (config.integrity, config.integrity_key_file) == ("blake3-keyed", "/k")
    assert with_files(config, parse_url("redis://h?db=3")) == config
    assert parse_url("redis://h?db=3").database == 3


@pytest.mark.parametrize(
    "url", ["redis://h?tls_ca=/x", "unix:///s?tls_ca_file=", "file:///d?db=x&y", "memory://?pass=1"]
)
def test_unknown_words_in_a_query_are_refused(url: str) -> None:
    with pytest.raises(StoreUrlError, match="known are db, password_file, tls_ca_file"):
        parse_url(url)
