"""TLS settings and files: what is refused, and that a change is taken over."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import ValidationError

from cli.certs import write_dev_certificates
from runtime.certificate import not_after
from runtime.metrics import Metrics
from runtime.tls import Identity, TlsSettings, open_identity
from runtime.watched import SecretError
from tests.fakes.certificates import dev_certificates, tls_section


def settings(directory: Path, mode: str = "mtls", **more: object) -> TlsSettings:
    return TlsSettings.model_validate(tls_section(directory, mode, **more))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"mode": "tls"}, "mode tls needs cert_file"),
        ({"mode": "mtls", "cert_file": "a", "key_file": "b"}, "mode mtls needs ca_file"),
        (tls_section(Path("d"), "tls", peers=("a",)), "peers needs mode mtls"),
        ({"health_port": 70000}, "65535"),
    ],
)
def test_settings_that_contradict_each_other(section: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TlsSettings.model_validate(section)


def test_off_is_no_identity() -> None:
    assert open_identity(TlsSettings(), metrics=Metrics(), role="decode") is None


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("tls.key", "client.key", r"tls\.key: .*; give a PEM certificate and the private key"),
        ("tls.crt", None, r"tls\.crt and .*: .*; give a PEM certificate"),
        ("ca.crt", None, r"ca\.crt: .*; give certificates in PEM form"),
    ],
)
def test_files_that_do_not_fit_are_named(
    tmp_path: Path, name: str, source: str | None, message: str
) -> None:
    shutil.copytree(dev_certificates(), tmp_path, dirs_exist_ok=True)
    content = (tmp_path / source).read_bytes() if source else b"nonsense"
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SecretError, match=message):
        Identity(settings(tmp_path), metrics=Metrics(), role="decode")


def test_a_renewed_certificate_is_taken_over(tmp_path: Path) -> None:
    write_dev_certificates(tmp_path)
    metrics = Metrics()
    identity = Identity(settings(tmp_path), metrics=metrics, role="decode")
    assert (identity.version, identity.server_name) == (1, "")
    identity.http()
    write_dev_certificates(tmp_path, days=60, force=True)
    assert identity.refresh()
    assert identity.version == 2
    wanted = not_after((tmp_path / "tls.crt").read_text()).timestamp()
    name = "disagg_tls_cert_expiry_timestamp_seconds"
    assert metrics.value(name, role="decode") == wanted
    assert not identity.refresh()


def test_a_key_with_a_password_is_refused_without_asking(tmp_path: Path) -> None:
    write_dev_certificates(tmp_path)
    key = load_pem_private_key((tmp_path / "tls.key").read_bytes(), password=None)
    sealed = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")
    )
    (tmp_path / "tls.key").write_bytes(sealed)
    with pytest.raises(SecretError, match=r"tls\.key is encrypted; give the key without"):
        Identity(settings(tmp_path), metrics=Metrics(), role="decode")


def test_files_replaced_between_two_reads_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dev_certificates(tmp_path)
    identity = Identity(settings(tmp_path), metrics=Metrics(), role="decode")
    identity.http()
    write_dev_certificates(tmp_path, days=60, force=True)
    refresh = identity._watched.refresh

    def refresh_and_replace() -> bool:
        is_new = refresh()
        (tmp_path / "tls.key").write_bytes(b"half of a k")
        return is_new

    monkeypatch.setattr(identity._watched, "refresh", refresh_and_replace)
    assert identity.refresh()
    monkeypatch.undo()
    assert not identity.refresh()  # what is there now is broken, and was looked at again
    assert identity.version == 2
