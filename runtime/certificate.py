"""When a certificate ends: the one thing of X.509 that this system reads by itself. Pure.

Certificate  ::= SEQUENCE { tbs, ... }
tbs          ::= SEQUENCE { [0] version, serial, algorithm, issuer, validity, ... }
validity     ::= SEQUENCE { notBefore, notAfter }
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0
_END = "-----END CERTIFICATE-----"


def not_after(pem: str) -> datetime:
    """End of the first certificate in a PEM text.

    Raises:
        ValueError: There is no certificate in it.
    """
    first = pem[pem.find("-----BEGIN CERTIFICATE-----") :].partition(_END)[0] + _END
    try:
        der = ssl.PEM_cert_to_DER_cert(first)
        tbs = _content(_content(der))
        fields = [item for item in _items(tbs) if item[0] != _VERSION]
        validity = fields[3]
        kind, text = list(_items(validity[1]))[1]
    except (ValueError, IndexError) as error:
        raise ValueError("there is no certificate in PEM form") from error
    if validity[0] != _SEQUENCE or kind not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError("the certificate has no period of validity")
    digits = text.decode("ascii").removesuffix("Z")
    if kind == _UTC_TIME:  # two digits of the year; 50 is 1950
        digits = ("19" if digits[:2] >= "50" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC)


def _content(data: bytes) -> bytes:
    """Content of the sequence that `data` begins with."""
    tag, content = next(_items(data))
    if tag != _SEQUENCE:
        raise ValueError("not a sequence")
    return content


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element."""
    at = 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            count = length & 0x7F
            length, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + length > len(data):
            raise ValueError("cut off")
        yield tag, data[at : at + length]
        at += length
