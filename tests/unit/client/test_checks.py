"""Values that the wire cannot carry are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from client import ChatMessage, InvalidArgument, Sampling
from client.checks import allowed_s, check_prompt, check_sampling, check_text

BAD = [
    ("seed", -1, "-1 is out of range; send 0 to 18446744073709551615"),
    ("seed", 1 << 64, "is out of range"),
    pytest.param("seed", 10**5000, "an integer of enormous size is out of range", id="enormous"),
    ("seed", 1.5, "1.5 is not an integer; send 0 to"),
    ("top_k", -1, "-1 is out of range; send 0 to 4294967295"),
    ("max_tokens", 1 << 32, "send 0 to 4294967295"),
    ("min_tokens", -1, "send 0 to 4294967295"),
    ("logprobs", "3", "'3' is not an integer"),
    ("temperature", "hot", "'hot' is not a number"),
    pytest.param("top_p", 10**400, "is not a number of 64 bits", id="big"),
    ("ignore_eos", 1, "1 is neither True nor False"),
    ("stop", "abc", "'abc' is not a tuple"),
    ("stop_token_ids", 5, "5 is not a tuple"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_sampling(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_sampling(Sampling(**{name: value}))
    assert str(caught.value).startswith(f"sampling.{name}: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200


def test_items_are_named_by_number() -> None:
    with pytest.raises(InvalidArgument, match=r"^sampling.stop\[1\]: character 2 is"):
        check_sampling(Sampling(stop=("a", "b\udfff")))
    with pytest.raises(InvalidArgument, match=r"^sampling.stop_token_ids\[0\]: -3 is out"):
        check_sampling(Sampling(stop_token_ids=(-3,)))
    with pytest.raises(InvalidArgument, match=r"^prompt\[2\]: 4294967296 is out"):
        check_prompt([0, 1, 1 << 32])
    with pytest.raises(InvalidArgument, match=r"^prompt\[0\].content: character 1"):
        check_prompt([ChatMessage(role="user", content="\ud800")])


def test_what_can_be_sent_passes() -> None:
    check_sampling(Sampling())
    check_sampling(Sampling(seed=0, top_k=(1 << 32) - 1, temperature=1, stop=("é",)))
    check_text("x", "日本 \U0001f600")
    check_prompt([])


def test_text_is_text() -> None:
    with pytest.raises(InvalidArgument, match="x: b'raw' is not a text; send a str"):
        check_text("x", b"raw")


def test_no_time_is_not_the_default_time() -> None:
    assert allowed_s(None, 600.0) == 600.0
    assert allowed_s(2, 600.0) == 2
    for wrong in (0, 0.0, -1.0, float("nan"), float("inf"), "5"):
        with pytest.raises(InvalidArgument, match=r"^timeout_s: .* no positive number of seconds"):
            allowed_s(wrong, 600.0)  # type: ignore[arg-type]
