"""The requests that run now: one per id, each with one deadline and one switch to end it.

`scope` wraps the whole journey of a request. Its deadline and `cancel` both end the body by
cancellation, so that everything the body holds is given back on the way out.
"""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from balancer.journey.request import Request
from runtime.clock import Clock
from runtime.errors import AlreadyRunning, FieldViolation, InvalidRequest, Reason, TooLate


class RequestCancelled(Exception):
    """Somebody ended the request through `RunningRequests.cancel`."""


_KNOWN_PROMPTS = 4096  # about 100 bytes each
_SLICE_TOKENS = 1 << 15  # about a millisecond; a million tokens at once took 19 ms


class _Entry:
    def __init__(self, deadline: asyncio.Timeout, owner: str | None) -> None:
        self.deadline = deadline
        self.owner = owner
        self.is_cancelled = False


class RunningRequests:
    """The requests of one balancer, by id; belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._prompts: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        """How many run."""
        return len(self._entries)

    @asynccontextmanager
    async def scope(self, request: Request) -> AsyncIterator[None]:
        """Runs the body as this request.

        Raises:
            AlreadyRunning: The id is in use.
            InvalidRequest: It would go on with another prompt than it began with, as far as known.
            TooLate: The deadline passed.
            RequestCancelled: `cancel` was called.
        """
        request_id = request.request_id
        digest = await _digest_of(request.token_ids)  # others have run when it is there
        if request_id in self._entries:
            raise AlreadyRunning(
                f"request_id: {request.public_id!r} is running; wait for its end, cancel it, or "
                "choose another id",
                reason=Reason.DUPLICATE_REQUEST,
            )
        self._check_prompt(request, digest)
        timeout_s = request.deadline - self._clock.now()
        entry: _Entry | None = None
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                entry = self._entries[request_id] = _Entry(deadline, request.owner)
                try:
                    yield
                finally:
                    del self._entries[request_id]
        except TimeoutError as error:
            if entry is None or not entry.deadline.expired():
                raise
            if entry.is_cancelled:
                raise RequestCancelled from error
            raise deadline_passed(request) from error

    def _check_prompt(self, request: Request, digest: bytes) -> None:
        """One answer has one prompt, however often it breaks; those of the last are remembered."""
        if request.last_seq and self._prompts.get(request.request_id, digest) != digest:
            raise InvalidRequest(
                f"last_seq: {request.last_seq} tokens of {request.public_id!r} belong to another "
                "prompt; send the prompt it began with, or last_seq 0 and another request_id",
                violations=(
                    FieldViolation(field="last_seq", description="the prompt is another one"),
                ),
            )
        self._prompts[request.request_id] = digest
        self._prompts.move_to_end(request.request_id)
        if len(self._prompts) > _KNOWN_PROMPTS:
            self._prompts.popitem(last=False)

    def cancel(self, request_id: str, *, owner: str | None = None) -> bool:
        """Ends a running request; returns whether it ran. Twice is harmless.

        Args:
            owner: Tenant who asks: requests of others do not exist for it; None: all do.
        """
        entry = self._entries.get(request_id)
        if entry is None or (owner is not None and owner != entry.owner):
            return False
        if not entry.is_cancelled and not entry.deadline.expired():
            entry.is_cancelled = True
            entry.deadline.reschedule(asyncio.get_running_loop().time())
        return True


async def _digest_of(token_ids: Sequence[int]) -> bytes:
    """The digest of a prompt, 16 bytes; others run between the slices of a long one.

    In slices and not in a thread: most of it is one call that never lets go of the interpreter.
    """
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(token_ids), _SLICE_TOKENS):
        if start:
            await asyncio.sleep(0)
        digest.update(array("I", token_ids[start : start + _SLICE_TOKENS]).tobytes())
    return digest.digest()


def deadline_passed(request: Request) -> TooLate:
    """The error of a request whose time is up."""
    allowed_s = request.deadline - request.arrived_at
    return TooLate(
        f"the request took longer than its {allowed_s:.3g} s; allow more time, or resume it with "
        "the same request_id and last_seq",
        reason=Reason.DEADLINE,
    )
