"""What it takes to be let in: combinations that cannot be, and keys that stay unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest

from client import Access, InvalidArgument
from client.transport import open_aio_channel, open_channel


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"api_key": "two words"}, "api_key"),
        ({"api_key": "käse"}, "api_key"),
        ({"api_key": 7}, "api_key"),
        ({"ca_file": Path("a"), "cert_file": Path("b")}, "cert_file"),
        ({"server_name": "n"}, "ca_file"),
        ({"cert_file": Path("a"), "key_file": Path("b")}, "ca_file"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Access(**fields)
    assert list(caught.value.fields) == [field]


def test_a_key_goes_with_calls_and_is_not_shown() -> None:
    access = Access(api_key="secret-key")
    assert list(access.metadata) == [("authorization", "Bearer secret-key")]
    assert "secret" not in repr(access)
    assert list(Access().metadata) == []


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    access = Access(ca_file=tmp_path / "none.crt")
    for opening in (open_channel, open_aio_channel):
        with pytest.raises(InvalidArgument, match=r"none\.crt cannot be read"):
            opening("127.0.0.1:1", access)
