"""`disagg kv`: each action on a real store, and what it says when it cannot act."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from cli.main import main
from kvstore import KvStore, embedded
from kvstore.backends.keyed import KeyedBackend, read_key
from kvstore.errors import TicketInvalid
from kvstore.keys import body_key, lease_key
from tests.fakes.servers import free_port, raw_tls_redis, running, wait_for
from tests.fakes.stores import FINGERPRINT, Prompt, RawRedis, make_store

PROMPT = Prompt("request-1", tuple(range(14)))

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def server() -> Iterator[RawRedis]:
    with embedded.start(max_memory_bytes=256 << 20) as server:
        raw = RawRedis(server.url)
        yield raw
        raw.close()


@pytest.fixture
def raw(server: RawRedis) -> RawRedis:
    server.clear()
    return server


@pytest.fixture
def store(raw: RawRedis) -> KvStore:
    return make_store(raw.backend)


def run(raw: RawRedis, *arguments: str) -> int:
    return main(["kv", *arguments, "--store", raw.url])


def answer(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_stats(raw: RawRedis, store: KvStore, capsys: pytest.CaptureFixture[str]) -> None:
    PROMPT.hand_over(store)
    raw.client.set("somebody's", "value")
    assert run(raw, "stats", "--json") == 0
    found = answer(capsys)
    assert found["layouts"][FINGERPRINT.hex()]["values"]["kv"] == 3
    assert found["control"] == {"body": 1, "lease": 1, "attempt": 1}
    assert found["foreign_keys"] == 1
    assert found["server"]["max_bytes"] == 256 << 20
    assert run(raw, "stats") == 0
    text = capsys.readouterr().out
    assert f"layout {FINGERPRINT.hex()}" in text
    assert "foreign 1" in text


def test_inspect(raw: RawRedis, store: KvStore, capsys: pytest.CaptureFixture[str]) -> None:
    ticket = PROMPT.hand_over(store)
    assert run(raw, "inspect", ticket.handoff_id, "--json") == 0
    found = answer(capsys)
    assert found["lease"]["state"] == "committed"
    assert found["body"]["num_tokens"] == 14
    assert run(raw, "inspect", PROMPT.hashes[0].hex()) == 0
    assert "sound" in capsys.readouterr().out
    key = body_key(ticket.handoff_id)
    raw.write(key, raw.values()[key][:-1] + b"x")
    assert run(raw, "inspect", key.decode()) == 1
    assert "DAMAGED: its digest" in capsys.readouterr().out
    assert run(raw, "inspect", "0" * 32) == 1
    assert "nothing is stored" in capsys.readouterr().out
    assert run(raw, "inspect", "nonsense") == 2
    assert "32 hex digits" in capsys.readouterr().err


def test_audit(raw: RawRedis, store: KvStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(raw, "audit") == 0
    assert "0 hand-offs, 0 orphans" in capsys.readouterr().out
    ticket = PROMPT.hand_over(store)
    assert run(raw, "audit") == 0
    assert "request-1" in capsys.readouterr().out
    raw.drop_lease(lease_key(ticket.handoff_id))
    assert run(raw, "audit", "--json") == 1
    found = answer(capsys)
    assert found["orphans"] == 1
    assert found["handoffs"][0]["state"] == "orphan"


def test_flush(raw: RawRedis, store: KvStore, capsys: pytest.CaptureFixture[str]) -> None:
    PROMPT.hand_over(store)
    assert run(raw, "flush", "--fingerprint", "00" * 8, "--json") == 0
    assert answer(capsys) == {"deleted": 0}
    assert run(raw, "flush", "--fingerprint", FINGERPRINT.hex()) == 0
    assert "9 keys deleted" in capsys.readouterr().out
    assert run(raw, "flush", "--fingerprint", "12") == 2
    assert "16 hex digits" in capsys.readouterr().err
    raw.client.set("somebody's", "value")
    assert run(raw, "flush", "--all") == 0
    assert raw.client.keys() == [b"somebody's"]
    with pytest.raises(SystemExit) as caught:
        run(raw, "flush")
    assert caught.value.code == 2


def test_mutate_in_a_given_store_leaves_it_as_it_was(
    raw: RawRedis, store: KvStore, capsys: pytest.CaptureFixture[str]
) -> None:
    ticket = PROMPT.hand_over(store)
    before = raw.values()
    assert run(raw, "mutate", "--count", "60", "--seed", "7", "--json") == 0
    found = answer(capsys)
    assert (found["mutations"], found["undetected"], found["unreadable_controls"]) == (60, 0, 0)
    assert sum(found["by_kind"].values()) == 60
    assert raw.values() == before
    with store.open_ticket(ticket, PROMPT.token_ids) as reader:
        assert reader.fetch().num_tokens == 14


def test_mutate_in_a_private_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kv", "mutate", "--count", "20"]) == 0
    assert "20 mutations, 0 undetected" in capsys.readouterr().out
    assert main(["kv", "mutate", "--count", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err


def test_mutate_fails_when_nothing_can_be_read(
    raw: RawRedis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_arguments: object) -> None:
        raise TicketInvalid("num_tokens", 1, 2)

    monkeypatch.setattr(KvStore, "open_ticket", refuse)
    assert run(raw, "mutate", "--count", "5", "--json") == 1
    assert answer(capsys)["unreadable_controls"] == 5


def test_the_help_says_what_mutate_leaves_and_how_a_key_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments, said in (
        (["kv", "mutate", "--help"], "a store in use is left as it was"),
        (["kv", "audit", "--help"], "?integrity_key_file=PATH for keyed tags"),
        (["kv", "--help"], "?integrity_key_file=PATH"),
        (["kv", "mutate", "--help"], "Killed in between, it leaves"),
        (["kv", "stats", "--help"], "redis+cluster://host:port"),
        (["kv", "stats", "--help"], "?password_file=PATH"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert said in " ".join(capsys.readouterr().out.split())


def test_a_store_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    for action in (["stats"], ["inspect", "0" * 32], ["audit"], ["flush", "--all"]):
        assert main(["kv", *action, "--store", "redis://127.0.0.1:1"]) == 3
    assert "cannot be reached" in capsys.readouterr().err
    assert main(["kv", "audit", "--store", "nonsense://x"]) == 2
    assert "scheme" in capsys.readouterr().err


def test_a_node_of_a_cluster_is_refused_by_every_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    port = free_port()
    with running(
        str(embedded.find_binary()),
        tmp_path,
        bind="127.0.0.1",
        port=str(port),
        cluster_enabled="yes",
        cluster_port=str(free_port()),
    ):
        wait_for(redis.Redis("127.0.0.1", port))
        for action in (
            ["stats"],
            ["inspect", "0" * 32],
            ["inspect", "0" * 64],
            ["audit"],
            ["flush", "--all"],
            ["mutate", "--count", "1"],
        ):
            assert main(["kv", *action, "--store", f"redis://127.0.0.1:{port}"]) == 3, action
            assert "redis+cluster://HOST:PORT" in capsys.readouterr().err


def test_a_password_is_asked_for_and_a_wrong_one_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    port = free_port()
    secret = tmp_path / "password"
    with running(
        str(embedded.find_binary()),
        tmp_path / "s",
        bind="127.0.0.1",
        port=str(port),
        requirepass="p",
    ):
        wait_for(redis.Redis("127.0.0.1", port, password="p"))
        url = f"redis://127.0.0.1:{port}"
        for action in (["stats"], ["audit"], ["inspect", body_key("0" * 32).decode()]):
            assert main(["kv", *action, "--store", url]) == 3
            assert "?password_file=PATH" in capsys.readouterr().err
        secret.write_text("wrong")
        assert main(["kv", "stats", "--store", f"{url}?password_file={secret}"]) == 3
        assert "it refused the password" in capsys.readouterr().err
        secret.write_text("p")
        assert main(["kv", "stats", "--store", f"{url}?password_file={secret}"]) == 0


def test_a_server_that_refuses_is_no_failed_check(
    raw: RawRedis, capsys: pytest.CaptureFixture[str]
) -> None:
    raw.client.config_set("maxmemory", 1)
    raw.client.config_set("maxmemory-policy", "noeviction")
    raw.client.execute_command("ACL", "SETUSER", "guest", "on", "nopass", "~*", "+ping")
    try:
        assert run(raw, "mutate", "--count", "1") == 3
        assert "is full" in capsys.readouterr().err
        url = raw.url.replace("unix://", "unix://guest:any@")
        assert main(["kv", "audit", "--store", url]) == 3
        assert "refused a command" in capsys.readouterr().err
    finally:
        raw.client.execute_command("ACL", "DELUSER", "guest")
        raw.client.config_set("maxmemory-policy", "volatile-lru")
        raw.client.config_set("maxmemory", 256 << 20)


def test_tags_without_their_key_are_not_called_damage(
    raw: RawRedis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 64)
    url = f"{raw.url}?integrity_key_file={key}"
    backend = KeyedBackend(raw.backend, read_key(str(key)))
    ticket = PROMPT.hand_over(make_store(backend))
    names = (ticket.handoff_id, body_key(ticket.handoff_id).decode(), PROMPT.hashes[0].hex())
    for name in names:
        assert run(raw, "inspect", name) == 2
        captured = capsys.readouterr()
        assert "?integrity_key_file=PATH" in captured.err
        assert "DAMAGED" not in captured.out
        assert main(["kv", "inspect", name, "--store", url]) == 0
        assert "sound" in capsys.readouterr().out
    other = tmp_path / "other"
    other.write_text("o" * 64)
    wrong = f"{raw.url}?integrity_key_file={other}"
    assert main(["kv", "inspect", names[1], "--store", wrong]) == 1
    assert "the key file is not that of its writer" in capsys.readouterr().out
    tail = next(iter(key for key in raw.values() if b":t:" in key))
    raw.write(tail, raw.client.get(tail)[:-17] + b"x" * 17)
    assert run(raw, "inspect", tail.decode()) == 1
    assert "DAMAGED" in capsys.readouterr().out


def test_a_directory_that_is_not_there_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typo, url = tmp_path / "typo", f"file://{tmp_path / 'typo'}"
    for action in (
        ["stats"],
        ["inspect", "0" * 32],
        ["audit"],
        ["flush", "--all"],
        ["mutate", "--count", "1"],
    ):
        assert main(["kv", *action, "--store", url]) == 2
        assert f"there is no directory {typo}" in capsys.readouterr().err
    assert not typo.exists()
    typo.mkdir()
    assert main(["kv", "audit", "--store", url]) == 0


def test_a_url_says_all_that_tls_needs(capsys: pytest.CaptureFixture[str]) -> None:
    with raw_tls_redis() as raw:
        ticket = PROMPT.hand_over(make_store(raw.backend))
        names = ("tls_ca_file", "tls_cert_file", "tls_key_file")
        query = "&".join(f"{name}={raw.settings[name]}" for name in names)
        url = f"{raw.url}?{query}"
        assert main(["kv", "audit", "--store", url, "--json"]) == 0
        assert answer(capsys)["handoffs"][0]["handoff_id"] == ticket.handoff_id
        assert main(["kv", "mutate", "--store", url, "--count", "20"]) == 0
        capsys.readouterr()
        # Without the authority the certificate proves nothing.
        assert main(["kv", "audit", "--store", raw.url]) == 3
        assert "cannot be reached" in capsys.readouterr().err
