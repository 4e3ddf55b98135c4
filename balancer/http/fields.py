"""Typed reading of a JSON body: faults name the field, what was found, what is accepted. Pure.

A field that is null counts as absent, as OpenAI's clients send it. What nobody read is unknown;
the caller decides what becomes of that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from balancer.validation import bad_field
from runtime.errors import FieldViolation, InvalidRequest, Reason

MAX_UINT32 = (1 << 32) - 1
_SHOWN = 60


def parse_body(data: bytes) -> Mapping[str, object]:
    """The JSON object of a body.

    Raises:
        InvalidRequest: The bytes are no JSON object in UTF-8.
    """
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise InvalidRequest("body: nested too deeply; send a flat JSON object") from error
    except ValueError as error:
        raise InvalidRequest(f"body: not JSON in UTF-8: {_short(str(error))}") from error
    if not isinstance(value, dict):
        raise InvalidRequest("body: send a JSON object")
    return value


class Fields:
    """The members of one JSON object.

    Args:
        prefix: Written before the names of fields in messages, as in `stream_options.`.
    """

    def __init__(self, body: Mapping[str, object], *, prefix: str = "") -> None:
        self._body = body
        self._prefix = prefix
        self._read: set[str] = set()

    def unknown(self) -> list[str]:
        """Names that nobody asked for, in order."""
        return sorted(name for name in self._body if name not in self._read)

    def ignore(self, names: Iterable[str]) -> None:
        """These are known and have no effect here."""
        self._read.update(names)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.value(name) is not None

    def value(self, name: str) -> object:
        """The value as it is; None if it is absent."""
        self._read.add(name)
        return self._body.get(name)

    def text(self, name: str) -> str | None:
        """A text that UTF-8 can carry."""
        value = self.value(name)
        if value is None:
            return None
        return self.as_text(name, value)

    def as_text(self, name: str, value: object) -> str:
        """Checks a value that is part of field `name`."""
        if not isinstance(value, str):
            raise self.fault(name, f"{shown(value)} is not a string")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self.fault(
                name, f"character {error.start + 1} is half of a surrogate pair; send whole ones"
            ) from error
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A text or a list of texts; empty if absent."""
        value = self.value(name)
        if value is None:
            return ()
        if isinstance(value, list):
            return tuple(
                self.as_text(f"{name}[{number}]", item) for number, item in enumerate(value)
            )
        return (self.as_text(name, value),)

    def integer(self, name: str, *, low: int = 0, high: int = MAX_UINT32) -> int | None:
        """An integer in [low, high]."""
        value = self.value(name)
        if value is None:
            return None
        return self.as_integer(name, value, low=low, high=high)

    def as_integer(self, name: str, value: object, *, low: int = 0, high: int = MAX_UINT32) -> int:
        """Checks a value that is part of field `name`."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fault(name, f"{shown(value)} is not an integer")
        if not low <= value <= high:
            raise self.fault(name, f"{shown(value)} is out of range; send {low} to {high}")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of 32-bit numbers; empty if absent."""
        value = self.value(name)
        if value is None:
            return ()
        return self.as_integers(name, value)

    def as_integers(self, name: str, value: object) -> tuple[int, ...]:
        """Checks a value that is part of field `name`."""
        if not isinstance(value, list):
            raise self.fault(name, f"{shown(value)} is not a list of integers")
        return tuple(
            item
            if type(item) is int and 0 <= item <= MAX_UINT32
            else self.as_integer(f"{name}[{number}]", item)
            for number, item in enumerate(value)
        )

    def real(self, name: str) -> float | None:
        """A number; NaN and infinity pass, the check of sampling parameters names them."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.fault(name, f"{shown(value)} is not a number")
        try:
            return float(value)
        except OverflowError as error:
            raise self.fault(name, f"{shown(value)} does not fit into 64 bits") from error

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(name, f"{shown(value)} is neither true nor false")
        return value

    def items(self, name: str) -> Sequence[object] | None:
        """A list of anything."""
        value = self.value(name)
        if value is not None and not isinstance(value, list):
            raise self.fault(name, f"{shown(value)} is not a list")
        return value

    def child(self, name: str) -> Fields | None:
        """A JSON object."""
        value = self.value(name)
        if value is None:
            return None
        return self.as_child(name, value)

    def as_child(self, name: str, value: object) -> Fields:
        """Checks a value that is part of field `name`."""
        if not isinstance(value, dict):
            raise self.fault(name, f"{shown(value)} is not an object")
        return Fields(value, prefix=f"{self._prefix}{name}.")

    def refuse(self, name: str, *, allowed: Sequence[object], way_out: str) -> None:
        """Raises UNSUPPORTED_PARAMETER unless the field is absent, or one of `allowed`."""
        value = self.value(name)
        if value is not None and value not in allowed:
            raise self.unsupported(name, f"{shown(value)} is not supported; {way_out}")

    def fault(self, name: str, description: str) -> InvalidRequest:
        """A BAD_REQUEST about a field."""
        return bad_field(self._prefix + name, description)

    def unsupported(self, name: str, description: str) -> InvalidRequest:
        """An UNSUPPORTED_PARAMETER about a field."""
        field = self._prefix + name
        return InvalidRequest(
            f"{field}: {description}",
            reason=Reason.UNSUPPORTED_PARAMETER,
            violations=(FieldViolation(field=field, description=description),),
        )


def shown(value: object) -> str:
    """A foreign value for a message, bounded."""
    try:
        text = json.dumps(value)
    except ValueError:  # Python writes no integers of many thousand digits
        return "a number of enormous size"
    return _short(text)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
