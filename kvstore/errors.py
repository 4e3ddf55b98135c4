"""Everything the store library raises, each with a cause that can be counted.

The library speaks in its own small exceptions; the rim of a service translates them (`cause` is a
stable lower-case label without ids, fit for a metric). Knows no wire code.

Invariant: a message names what failed, where, and what to do; it never holds token ids.
"""

from __future__ import annotations


class KvStoreError(Exception):
    """Root of the tree. `cause` is a label for counting."""

    cause: str = "store"


class StoreDown(KvStoreError):
    """The store cannot be reached or does not answer in time. Retrying is harmless."""

    cause = "store_down"

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(
            f"KV store at {address} cannot be reached: {detail}; "
            "check that the server runs and that the store URL is right"
        )
        self.address = address
        self.detail = detail


class StoreFull(KvStoreError):
    """The store refused a write for lack of memory."""

    cause = "store_full"

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(
            f"KV store at {address} is full: {detail}; raise its maxmemory or send less work"
        )
        self.address = address


class StoreRefused(KvStoreError):
    """The server answered with an error that neither waiting nor another server would mend."""

    cause = "store_refused"

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(f"KV store at {address} refused a command: {detail}")
        self.address = address
        self.detail = detail


class StoreIsCluster(StoreRefused):
    """The URL means one server, and there is a node of a cluster: most keys would not be seen."""

    cause = "store_is_cluster"

    def __init__(self, address: str) -> None:
        super().__init__(
            address,
            "it is a node of a cluster, and this URL would see what is on that node only; write "
            "redis+cluster://HOST:PORT, or rediss+cluster:// with TLS",
        )


class BlockMissing(KvStoreError):
    """A named payload is not (or no longer) in the store. The reader recomputes.

    Attributes:
        kind: `kv`, `state`, `tail_kv`, `tail_state` or `body`.
        index: Position of the block in the request of the caller; 0 where there is one payload.
    """

    cause = "missing"

    def __init__(
        self, kind: str, index: int, detail: str = "it was never written or evicted"
    ) -> None:
        super().__init__(f"{kind} payload {index} is not in the store: {detail}")
        self.kind = kind
        self.index = index
        self.cause = f"missing_{kind}"


class BlockCorrupt(KvStoreError):
    """Stored bytes are not what their name says. The key was quarantined; the reader recomputes.

    Attributes:
        kind: As in `BlockMissing`.
        index: As in `BlockMissing`.
        reason: Which check failed, one word: `magic`, `fingerprint`, `digest`, `chain`, ...
    """

    cause = "corrupt"

    def __init__(self, kind: str, index: int, reason: str, detail: str) -> None:
        super().__init__(f"{kind} payload {index} failed its {reason} check: {detail}")
        self.kind = kind
        self.index = index
        self.reason = reason
        self.cause = f"corrupt_{reason}"


class LeaseLost(KvStoreError):
    """The hand-off is no longer ours: expired, taken over, aborted or already released."""

    cause = "lease_lost"

    def __init__(self, handoff_id: str, reason: str) -> None:
        super().__init__(
            f"lease of hand-off {handoff_id} is lost ({reason}); data read under it is discarded"
        )
        self.handoff_id = handoff_id
        self.reason = reason
        self.cause = f"lease_{reason}"


class StaleAttempt(KvStoreError):
    """A newer attempt of the same request exists; this one must not continue.

    Attributes:
        attempt: The refused attempt.
        newest: The newest attempt the store knows; 0 when it no longer knows any.
    """

    cause = "stale_attempt"

    def __init__(self, request_id: str, attempt: int, newest: int) -> None:
        known = f"attempt {newest} is the newest" if newest else "the store knows no attempt"
        super().__init__(
            f"attempt {attempt} of request {request_id} is refused: {known}; "
            f"start attempt {max(newest, attempt) + 1}"
        )
        self.request_id = request_id
        self.attempt = attempt
        self.newest = newest


class LayoutDiffers(KvStoreError):
    """The two sides store KV in different forms. The pair is refused, never the process."""

    cause = "layout_differs"

    def __init__(self, field: str, found: str, wanted: str) -> None:
        super().__init__(
            f"KV layouts differ in {field}: the ticket has {found}, this side has {wanted}; "
            "both sides need the same model, revision, block size and KV quantisers"
        )
        self.field = field


class TicketInvalid(KvStoreError):
    """A ticket, its body or the tokens it came with contradict each other."""

    cause = "ticket_invalid"

    def __init__(self, field: str, found: object, wanted: object) -> None:
        super().__init__(f"ticket field {field} is {found!r}, {wanted!r} was expected")
        self.field = field
        self.cause = f"ticket_{field}"


class StoreUrlError(ValueError):
    """A store URL that names no known backend or lacks a part."""


class EmbeddedUnavailable(KvStoreError):
    """The private server cannot be started on this machine."""

    cause = "embedded_unavailable"
