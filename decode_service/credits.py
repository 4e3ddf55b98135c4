"""Credits: the right to one slot and KV room that a caller takes before its prefill starts.

Pure: it names credits and their deadlines, receives `now` in seconds, and says which credits have
lapsed; the room itself is kept by the engine under the credit's id.

    open ──redeem──► used (the engine holds the room for the request)
      ├────release──► gone
      └────expire───► gone (deadline passed; nobody has to ask)

Invariant: every id that `open` gave out leaves through exactly one of redeem, release and expire.
"""

import uuid
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """An open credit.

    Args:
        credit_id: Names it, and the room in the engine.
        request_id: Whose request may use it.
        expires_at: When it lapses, on the clock of the process.
    """

    credit_id: str
    request_id: str
    expires_at: float


class Credits:
    """The open credits of one rank."""

    def __init__(self, *, ttl_s: float) -> None:
        """Sets up an empty ledger; credits live `ttl_s` seconds, above 0."""
        if ttl_s <= 0:
            raise ValueError(f"ttl_s is {ttl_s}, it must be above 0")
        self.ttl_s = ttl_s
        self._open: dict[str, Credit] = {}
        self._num_opened = 0

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request_id: str, now: float) -> Credit:
        """A new credit for `request_id`."""
        self._num_opened += 1
        credit = Credit(
            # Half a pass to `Decode`, so nobody may guess it; the number is for whoever reads logs.
            credit_id=f"c{self._num_opened}-{uuid.uuid4().hex}",
            request_id=request_id,
            expires_at=now + self.ttl_s,
        )
        self._open[credit.credit_id] = credit
        return credit

    def redeem(self, credit_id: str, request_id: str, now: float) -> Credit | None:
        """Takes a credit out for use; None if it lapsed, never was, or is another request's."""
        return self._open.pop(credit_id) if self.holds(credit_id, request_id, now) else None

    def holds(self, credit_id: str, request_id: str, now: float) -> bool:
        """Whether this request has this credit; it stays open."""
        credit = self._open.get(credit_id)
        return credit is not None and credit.request_id == request_id and credit.expires_at > now

    def release(self, credit_id: str) -> bool:
        """Closes a credit; whether it was open."""
        return self._open.pop(credit_id, None) is not None

    def expire(self, now: float) -> list[Credit]:
        """Closes and returns the credits whose deadline passed."""
        lapsed = [credit for credit in self._open.values() if credit.expires_at <= now]
        for credit in lapsed:
            del self._open[credit.credit_id]
        return lapsed
