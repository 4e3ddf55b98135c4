"""Typed reading of JSON: every wrong type, every border, and what nobody read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.http.fields import Fields, parse_body, shown
from runtime.errors import InvalidRequest, Reason


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"a": "\xff"}', "not JSON in UTF-8"),
        (b"[1]", "send a JSON object"),
        (b'"x"', "send a JSON object"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_bodies_that_are_none(data: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_body(data)


READS: list[tuple[str, Callable[[Fields], object], object, str]] = [
    ("text", lambda f: f.text("x"), 3, "3 is not a string"),
    ("surrogate", lambda f: f.text("x"), "a\ud800", "character 2 is half of a surrogate pair"),
    ("texts", lambda f: f.texts("x"), ["a", 1], r"x\[1\]: 1 is not a string"),
    ("integer", lambda f: f.integer("x"), "1", '"1" is not an integer'),
    ("bool", lambda f: f.integer("x"), True, "true is not an integer"),
    ("half", lambda f: f.integer("x"), 1.5, "1.5 is not an integer"),
    ("low", lambda f: f.integer("x"), -1, "-1 is out of range; send 0 to 4294967295"),
    ("high", lambda f: f.integer("x", high=5), 6, "send 0 to 5"),
    ("huge", lambda f: f.integer("x"), 10**5000, "a number of enormous size is out of range"),
    ("ids", lambda f: f.integers("x"), {"a": 1}, "is not a list of integers"),
    ("id", lambda f: f.integers("x"), [1, -1], r"x\[1\]: -1 is out of range"),
    ("real", lambda f: f.real("x"), "hot", '"hot" is not a number'),
    ("overflow", lambda f: f.real("x"), 10**400, "does not fit into 64 bits"),
    ("flag", lambda f: f.flag("x"), 1, "1 is neither true nor false"),
    ("items", lambda f: f.items("x"), "a", '"a" is not a list'),
    ("child", lambda f: f.child("x"), [1], r"\[1\] is not an object"),
]


@pytest.mark.parametrize(
    ("read", "value", "message"), [row[1:] for row in READS], ids=[row[0] for row in READS]
)
def test_wrong_values_name_field_value_and_way_out(
    read: Callable[[Fields], object], value: object, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        read(Fields({"x": value}))
    assert caught.value.violations[0].field.startswith("x")
    assert len(caught.value.message) < 200


def test_null_is_absent() -> None:
    fields = Fields({"x": None})
    assert not fields.has("x")
    assert (fields.text("x"), fields.integer("x"), fields.real("x")) == (None, None, None)
    assert (fields.texts("x"), fields.integers("x"), fields.items("x")) == ((), (), None)
    assert (fields.flag("x", default=True), fields.child("x")) == (True, None)
    fields.refuse("x", allowed=(), way_out="")


def test_good_values() -> None:
    fields = Fields({"a": "t", "b": ["u", "v"], "c": 4.0, "d": 1, "e": [1, 2.0], "f": True})
    assert (fields.texts("a"), fields.texts("b")) == (("t",), ("u", "v"))
    assert (fields.integer("c"), fields.real("d"), fields.integers("e")) == (4, 1.0, (1, 2))
    assert fields.flag("f")


def test_what_nobody_read_is_unknown() -> None:
    fields = Fields({"b": 1, "a": {"c": 1, "d": 2}, "e": 3})
    child = fields.child("a")
    assert child is not None
    assert child.integer("c") == 1
    fields.ignore(["e", "never"])
    assert (fields.unknown(), child.unknown()) == (["b"], ["d"])
    with pytest.raises(InvalidRequest, match=r"a.d: 2 is not a string"):
        child.text("d")


def test_known_values_that_are_not_supported_say_so() -> None:
    fields = Fields({"x": ["a"]})
    fields.refuse("x", allowed=(["a"],), way_out="leave it out")
    with pytest.raises(
        InvalidRequest, match=r'x: \["a"\] is not supported; leave it out'
    ) as caught:
        fields.refuse("x", allowed=([],), way_out="leave it out")
    assert caught.value.reason is Reason.UNSUPPORTED_PARAMETER


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_nothing_but_an_error_of_the_tree_comes_out(value: Any) -> None:
    for _, read, _, _ in READS:
        with contextlib.suppress(InvalidRequest):
            read(Fields({"x": value}))
    assert len(shown(value)) <= 63
