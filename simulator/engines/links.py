"""Bandwidth with a queue: whoever comes first is served first."""

from __future__ import annotations


class Link:
    """One link in one direction.

    Args:
        bytes_per_s: What it carries; infinity for a link that never binds.
    """

    def __init__(self, bytes_per_s: float) -> None:
        if not bytes_per_s > 0:
            raise ValueError(f"bytes_per_s {bytes_per_s} must be above 0")
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self.num_bytes = 0.0
        self.busy_s = 0.0
        self.queued_s = 0.0

    def send(self, num_bytes: float, now: float) -> float:
        """Queues a transfer; returns when its last byte is through."""
        start = max(now, self._free_at)
        takes_s = num_bytes / self._bytes_per_s
        self.num_bytes += num_bytes
        self.busy_s += takes_s
        self.queued_s += start - now
        self._free_at = start + takes_s
        return self._free_at

    def wait_s(self, now: float) -> float:
        """How long a transfer would queue now."""
        return max(0.0, self._free_at - now)


def through(num_bytes: float, now: float, *links: Link) -> float:
    """Sends through several links at once; the slowest decides when the last byte is there."""
    return max([now, *(link.send(num_bytes, now) for link in links)])
