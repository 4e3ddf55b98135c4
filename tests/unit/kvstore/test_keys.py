"""Keys byte by byte, and that parsing gives back what a key was built from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.keys import (
    FINGERPRINT_BYTES,
    HASH_BYTES,
    TAIL_COMPONENTS,
    Component,
    KeyName,
    attempt_key,
    body_key,
    data_key,
    data_prefix,
    first_keys,
    handoff_id_of_key,
    index_key,
    is_handoff_id,
    lease_key,
    parse_key,
    tail_key,
    tail_prefix,
)

FINGERPRINT = bytes.fromhex("0011223344556677")
NAME = bytes(range(32))
HANDOFF = "00112233445566778899aabbccddeeff"

fingerprints = st.binary(min_size=FINGERPRINT_BYTES, max_size=FINGERPRINT_BYTES)
hashes = st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES)
segments = st.integers(0, 4095)


def test_the_grammar_of_keys() -> None:
    name = NAME.hex().encode()
    assert data_key(FINGERPRINT, NAME, Component.STATE, 3) == (
        b"dkv1:0011223344556677:b:{" + name + b"}:2:0:3"
    )
    assert index_key(FINGERPRINT, NAME) == b"dkv1:0011223344556677:m:{" + name + b"}"
    assert tail_key(FINGERPRINT, HANDOFF, Component.TAIL_KV, 1) == (
        b"dkv1:0011223344556677:t:{00112233445566778899aabbccddeeff}:3:0:1"
    )
    assert tail_key(FINGERPRINT, HANDOFF, Component.TAIL_KV, 1).startswith(
        tail_prefix(FINGERPRINT, HANDOFF)
    )
    assert body_key(HANDOFF) == b"dkv1:h:{00112233445566778899aabbccddeeff}"
    assert lease_key(HANDOFF) == b"dkv1:l:{00112233445566778899aabbccddeeff}"


def test_keys_of_a_chain_are_those_of_its_blocks() -> None:
    names = [NAME, bytes(32)]
    assert first_keys(FINGERPRINT, Component.STATE, names) == [
        data_key(FINGERPRINT, name, Component.STATE, 0) for name in names
    ]


def test_request_ids_enter_keys_as_digests() -> None:
    assert attempt_key("user: text {}") == attempt_key("user: text {}")
    assert attempt_key("a") != attempt_key("b")
    assert b"user" not in attempt_key("user: text {}")


@pytest.mark.parametrize("key", [body_key(HANDOFF), lease_key(HANDOFF)])
def test_the_part_between_the_braces(key: bytes) -> None:
    assert handoff_id_of_key(key) == HANDOFF
    assert handoff_id_of_key(b"no braces") == ""


@pytest.mark.parametrize(
    ("text", "is_id"),
    [(HANDOFF, True), (HANDOFF.upper(), False), (HANDOFF[1:], False), ("../" * 11, False)],
)
def test_what_is_a_handoff_id(text: str, is_id: bool) -> None:
    assert is_handoff_id(text) is is_id


@given(fingerprints, hashes, st.sampled_from(Component), segments)
def test_parsing_gives_back_what_a_key_was_built_from(
    fingerprint: bytes, name: bytes, component: Component, segment: int
) -> None:
    key = data_key(fingerprint, name, component, segment)
    assert key.startswith(data_prefix(fingerprint))
    assert parse_key(key) == KeyName(component.kind, fingerprint.hex(), name.hex(), segment)
    index = index_key(fingerprint, name)
    assert parse_key(index) == KeyName("index", fingerprint.hex(), name.hex())


@given(
    fingerprints, st.binary(min_size=16, max_size=16), st.sampled_from(TAIL_COMPONENTS), segments
)
def test_parsing_gives_back_the_hand_off(
    fingerprint: bytes, handoff: bytes, component: Component, segment: int
) -> None:
    handoff_id = handoff.hex()
    assert is_handoff_id(handoff_id)
    tail = tail_key(fingerprint, handoff_id, component, segment)
    assert parse_key(tail) == KeyName(component.kind, fingerprint.hex(), handoff_id, segment)
    assert parse_key(body_key(handoff_id)) == KeyName("body", "", handoff_id)
    assert parse_key(lease_key(handoff_id)) == KeyName("lease", "", handoff_id)
    for key in (tail, body_key(handoff_id), lease_key(handoff_id)):
        assert handoff_id_of_key(key) == handoff_id


@given(st.text())
def test_all_of_a_request_id_is_behind_its_digest(request_id: str) -> None:
    found = parse_key(attempt_key(request_id))
    assert found.kind == "attempt"
    assert is_handoff_id(found.name)  # as long and as plain as one


@given(st.lists(hashes, max_size=5), fingerprints, st.sampled_from(Component))
def test_a_chain_of_any_length_has_the_keys_of_its_blocks(
    names: list[bytes], fingerprint: bytes, component: Component
) -> None:
    assert first_keys(fingerprint, component, names) == [
        data_key(fingerprint, name, component, 0) for name in names
    ]


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"dkv1",
        b"other:h:{" + HANDOFF.encode() + b"}",
        b"dkv1:x:{" + HANDOFF.encode() + b"}",
        b"dkv1:0011223344556677:b:{00}:9:0:0",
        b"dkv1:0011223344556677:b:{00}:1:1:0",
        b"dkv1:0011223344556677:b:{00}:1:0:-1",
        b"dkv1:0011223344556677:b:{00}:1:0",
        b"dkv1:0011223344556677:b:{00}:1:0:0:0",
        b"dkv1:0011223344556677:b:{00}:1:0:" + b"9" * 5000,
        b"dkv1:0011223344556677:b:{00}:" + b"1" * 5000 + b":0:0",
    ],
)
def test_what_is_not_ours_is_unknown(key: bytes) -> None:
    assert parse_key(key) == KeyName("unknown")


@given(st.binary(max_size=80) | st.binary(max_size=40).map(lambda rest: b"dkv1:" + rest))
def test_any_bytes_can_be_parsed(key: bytes) -> None:
    assert parse_key(key).kind in {
        *(component.kind for component in Component),
        *("index", "body", "lease", "attempt", "unknown"),
    }
