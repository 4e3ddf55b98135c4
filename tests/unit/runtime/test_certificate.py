"""The end of a certificate, against the package that made it."""

from __future__ import annotations

import pytest
from cryptography import x509

from runtime.certificate import not_after
from tests.fakes.certificates import dev_certificates


@pytest.mark.parametrize("name", ["tls.crt", "ca.crt", "client.crt"])
def test_the_end_is_that_of_the_certificate(name: str) -> None:
    pem = (dev_certificates() / name).read_text()
    wanted = x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc
    assert not_after(pem) == wanted
    assert not_after(f"text before\n{pem}{pem}") == wanted


def test_what_is_none_is_refused() -> None:
    pem = (dev_certificates() / "tls.crt").read_text()
    key = (dev_certificates() / "tls.key").read_text()
    broken = pem.replace("\nM", "\nA", 1)
    for text in ("", "nonsense", key, broken, pem[:80]):
        with pytest.raises(ValueError, match="no certificate"):
            not_after(text)
