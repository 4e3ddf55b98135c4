"""No password of a URL is left, however carelessly it was written."""

from __future__ import annotations

import json

import pytest

from runtime.masking import MaskingParser, mask_text, mask_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@h:1/2", "redis://user:***@h:1/2"),
        ("redis://:secret@h", "redis://:***@h"),
        ("redis://u:sec@ret@h", "redis://u:***@h"),
        ("redis://u:se/cret@h:1", "redis://u:***@h:1"),
        ("redis://u:se?cr#et@h", "redis://u:***@h"),
        ("redis://u:se:cret@h", "redis://u:***@h"),
        ("redis+sentinel://u:secret@one:1,[::1]:2/kv", "redis+sentinel://u:***@one:1,[::1]:2/kv"),
        ("redis://h?password=secret&db=1", "redis://h?password=***&db=1"),
    ],
)
def test_a_password_is_replaced(url: str, shown: str) -> None:
    assert mask_url(url) == shown
    assert mask_text(f"at '{url}', again {url} ") == f"at '{shown}', again {shown} "


@pytest.mark.parametrize(
    "text",
    [
        "redis://user@h:1/2",
        "unix:///run/store.sock?password_file=/run/a@b",
        "http://[::1]:4317/v1/traces",
        "redis+sentinel://one:1,two:2/kv",
        "dns:///lb:1",
        "write to a:b@c",
        "",
    ],
)
def test_what_has_none_stays_as_it_is(text: str) -> None:
    assert mask_url(text) == mask_text(text) == text


def test_a_line_of_json_stays_one() -> None:
    told = {"a": 'see "redis://u:p@h?password=x\\"', "b": "redis://h?token=y\nredis://v:q@h"}
    line = mask_text(json.dumps(told))
    assert json.loads(line) == {
        "a": 'see "redis://u:***@h?password=***"',
        "b": "redis://h?token=***",  # more than had to be
    }


def test_a_parser_repeats_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        MaskingParser(prog="p").parse_args(["--stroe", "redis://u:secret@h"])
    assert "unrecognized arguments: --stroe redis://u:***@h" in capsys.readouterr().err


def test_a_password_with_a_space_is_replaced_where_the_url_is_all_there_is() -> None:
    assert mask_url("redis://u:my 'secret'@h") == "redis://u:***@h"
