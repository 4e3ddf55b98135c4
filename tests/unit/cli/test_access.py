"""What commands take from a key file and from the TLS settings of the environment."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from cli.access import access_of
from cli.errors import CommandError
from client import Access
from runtime.tls import TlsSettings
from tests.fakes.certificates import dev_certificates, tls_section


def test_the_environment_says_how_and_the_file_says_who(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert access_of(Namespace()) == Access()
    key = tmp_path / "key"
    key.write_text("team-a 0123456789abcdef # mine\n")
    assert access_of(Namespace(api_key_file=key)) == Access(api_key="0123456789abcdef")
    certificates = dev_certificates()
    for name, value in tls_section(certificates, "mtls", server_name="n").items():
        monkeypatch.setenv(f"DISAGG_TLS__{name.upper()}", str(value))
    monkeypatch.setenv("DISAGG_STORE__URL", "unix:///other/section")
    access = access_of(Namespace())
    assert (access.ca_file, access.server_name) == (certificates / "ca.crt", "n")
    assert access.cert_file == certificates / "tls.crt"
    monkeypatch.setenv("DISAGG_TLS__MODE", "tls")
    assert access_of(Namespace()).cert_file is None
    monkeypatch.delenv("DISAGG_TLS__CA_FILE")
    with pytest.raises(CommandError, match="mode tls needs ca_file"):
        access_of(Namespace())


def test_a_key_may_stand_below_a_comment(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("# of team a\n\n0123456789abcdef\n")
    assert access_of(Namespace(api_key_file=key)).api_key == "0123456789abcdef"


def test_what_is_wrong_with_tls_is_not_put_down_to_a_file_that_nobody_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    incomplete = TlsSettings.model_construct(mode="tls", ca_file=None, server_name="n")
    monkeypatch.setattr("cli.access.tls_settings", lambda: incomplete)
    with pytest.raises(CommandError, match=r"^tls\.ca_file: TLS needs the authorities"):
        access_of(Namespace(api_key_file=None))


@pytest.mark.parametrize("content", [None, "", "# nothing", "a key1\nb key2\n", "a key more"])
def test_a_file_without_a_key_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CommandError, match=r"--api-key-file .*key"):
        access_of(Namespace(api_key_file=path))
