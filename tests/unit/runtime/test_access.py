"""API keys: the file, the comparison, tenants."""

from __future__ import annotations

from pathlib import Path

import pytest

from disagg.wire import request_id_problem
from runtime.access import (
    ApiKeys,
    AuthSettings,
    current_tenant,
    open_keys,
    read_keys,
    salt_of,
    scoped_id,
    tenant_scope,
    visible_ids,
)
from runtime.errors import Denied, Reason
from runtime.metrics import Metrics
from runtime.watched import SecretError

FIRST, SECOND, THIRD = (f"{letter * 24}" for letter in "abc")


def test_keys_are_valid_while_they_stand_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# of March\nteam-a {FIRST}\nteam-a {SECOND}  # the next one\n\n{THIRD}\n")
    keys = open_keys(AuthSettings(keys_file=path), metrics=Metrics(), role="balancer")
    assert keys is not None
    assert keys.tenant_of(f"Bearer {FIRST}") == "team-a"
    assert keys.tenant_of(f"bearer  {SECOND} ") == "team-a"
    assert keys.tenant_of(f"Bearer {THIRD}") == ""
    path.write_text(f"team-a {SECOND}\n")
    assert keys.refresh()
    with pytest.raises(Denied, match="not valid") as caught:
        keys.tenant_of(f"Bearer {FIRST}")
    assert caught.value.reason is Reason.NOT_AUTHENTICATED
    assert FIRST not in str(caught.value)
    path.write_text("too short\n")
    assert not keys.refresh()
    assert keys.tenant_of(f"Bearer {SECOND}") == "team-a"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", FIRST, f"Basic {FIRST}"])
def test_a_header_without_a_key(tmp_path: Path, header: str) -> None:
    path = tmp_path / "keys"
    path.write_text(FIRST)
    keys = ApiKeys(path, metrics=Metrics(), role="balancer")
    with pytest.raises(Denied, match="no API key: send the header"):
        keys.tenant_of(header)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no key in it"),
        ("# nothing\n", "no key in it"),
        (f"a b {FIRST}", "line 1: 3 words"),
        (f"\na/b {FIRST}", "line 2: tenant 'a/b'"),
        ("team short", "line 1: the key has 5 characters"),
        (f"a {FIRST}\nb {FIRST}", "line 2: the key is that of another tenant"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(SecretError, match=message) as caught:
        read_keys(path)
    assert FIRST not in str(caught.value)


def test_nobody_reaches_the_blocks_of_another_tenant() -> None:
    callers = [(tenant, salt) for tenant in ("", "a", "b") for salt in ("", "a", "b", "a/b", "/a")]
    salts = [salt_of(tenant, salt) for tenant, salt in callers]
    assert len(set(salts)) == len(callers)
    assert salt_of(None, "own") == "own"


def test_no_two_tenants_share_an_id() -> None:
    names = ("x", "a:x", ":x", "a", "y" * 127, "y" * 128, ":" * 128)
    callers = [(tenant, name) for tenant in ("", "a", "b", "t" * 64) for name in names]
    scoped = [scoped_id(tenant, name) for tenant, name in callers]
    assert len(set(scoped)) == len(callers)
    for request_id in scoped:
        assert request_id_problem(request_id) is None
    assert scoped_id(None, "a:x") == "a:x"


def test_who_may_ask_after_whose_request() -> None:
    assert visible_ids("a:x") == ("a:x",)
    for tenant, overseer, seen in (
        ("b", "", ("b:a:x",)),
        ("", "", (":a:x", "a:x")),
        ("", "ops", (":a:x",)),
        ("ops", "ops", ("ops:a:x", "a:x")),
    ):
        with tenant_scope(tenant):
            assert visible_ids("a:x", overseer=overseer) == seen


def test_a_scope_names_the_tenant() -> None:
    assert current_tenant() is None
    with tenant_scope("a"):
        assert current_tenant() == "a"
    assert current_tenant() is None


def test_without_a_file_nobody_needs_a_key() -> None:
    assert open_keys(AuthSettings(), metrics=Metrics(), role="balancer") is None
