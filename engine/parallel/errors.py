"""What can go wrong between the ranks of a group; plain exceptions, translated at the rim.

After any `GroupError` the group is lost: collectives may be half done, so no rank may go on
stepping. The supervisor restarts the group; requests are re-routed above.
"""

from __future__ import annotations

from collections.abc import Sequence


class ParallelError(Exception):
    """Base of everything this package raises."""


class LayoutError(ParallelError, ValueError):
    """A layout that cannot exist; `violations` holds (check id, sentence) pairs."""

    def __init__(self, violations: Sequence[tuple[str, str]]) -> None:
        """Joins all violated checks into one message."""
        self.violations = tuple(violations)
        super().__init__("; ".join(f"{check}: {sentence}" for check, sentence in violations))


class BackendMissing(ParallelError, RuntimeError):
    """A transport between ranks that cannot run on this host; says what it needs."""


class DispatchInputError(ParallelError, ValueError):
    """Bad arguments of a dispatch or combine, found before anything was sent."""


class GroupError(ParallelError, RuntimeError):
    """The group of ranks can no longer step together."""


class CollectiveTimeout(GroupError):
    """A rank did not arrive in time.

    Args:
        group: name of the group.
        kind: which exchange: "dispatch", "combine", "vote" or "start".
        number: the exchange's number on its channel, counted from 1 on every rank.
        late_ranks: who had not arrived; empty when the transport cannot tell.
        waited_s: the bound that ran out, in seconds.
        context: step number, step kind and last agreed vector, as text.
    """

    def __init__(
        self,
        *,
        group: str,
        kind: str,
        number: int,
        late_ranks: Sequence[int],
        waited_s: float,
        context: str,
    ) -> None:
        """Builds the message an operator reads."""
        self.group = group
        self.kind = kind
        self.number = number
        self.late_ranks = tuple(late_ranks)
        self.waited_s = waited_s
        late = ", ".join(str(rank) for rank in late_ranks) or "unknown"
        super().__init__(
            f"group {group}: {kind} exchange {number} timed out after {waited_s:g} s; "
            f"late ranks: {late} ({context})"
        )


class PeerLost(GroupError):
    """A rank died, left or gave the group up; `rank` is the culprit, -1 when unknown."""

    def __init__(self, *, group: str, rank: int, reason: str, context: str) -> None:
        """Builds the message an operator reads."""
        self.group = group
        self.rank = rank
        self.reason = reason
        who = f"rank {rank}" if rank >= 0 else "a rank"
        super().__init__(f"group {group}: {who} {reason}; the group stops ({context})")


class GeometryMismatch(GroupError):
    """Ranks opened their ports with different sizes."""
