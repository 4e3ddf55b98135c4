"""Random damage to committed hand-offs, and what a reader makes of it.

Each round damages what one hand-off needs, reads that hand-off, puts back what was touched, and
reads it again. The damage is detected when the first read raises an error of the library (or is
offered a shorter prefix); whatever it returns otherwise is wrong. The second read is the control:
it must return what was written, bit by bit, or the run shows nothing. Works through the two ports
alone, under a fingerprint of its own, so it can run beside others on any store and leaves it as it
was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from kvstore.backends.base import Backend, HandoffKeys, PutItem
from kvstore.headers import HEADER_BYTES
from kvstore.keys import FINGERPRINT_BYTES
from kvstore.mutation.draws import Draws
from kvstore.mutation.readings import Reading, read_prefix, read_ticket
from kvstore.mutation.samples import Sample, sample_config, samples
from kvstore.store import KvStore
from kvstore.ticket import Ticket

KINDS = (
    "flip",
    "flip_header",
    "flip_attempt",
    "swap",
    "truncate",
    "grow",
    "reorder",
    "older_attempt",
    "newer_attempt",
    "other_revision",
    "other_tenant",
    "other_tokens",
    "drop",
    "half_written",
    "ticket",
    "prefix_flip",
    "prefix_flip_header",
    "prefix_swap",
    "prefix_truncate",
    "prefix_grow",
    "prefix_other_revision",
    "prefix_drop",
)
"""Kinds of damage; those that start with `prefix` are read as a later request with the same
beginning would, by blocks and the state at their end."""

TICKET_CHANGES: tuple[dict[str, object], ...] = (
    {"handoff_id": "0" * 32},
    {"request_id": "somebody-else"},
    {"attempt": 9},
    {"fingerprint": bytes(8)},
    {"num_tokens": 1},
    {"num_blocks": 1},
    {"last_block_hash": bytes(32)},
    {"tail_key": "dkv1:x"},
    {"tail_digest": bytes(16)},
    {"body_digest": bytes(32)},
    {"first_token": 123},
    {"fencing_token": 2**63},
)

_PREFIX = "prefix_"
_LIFE_MS = 600_000
_EARLIER = 4  # index of the sample that is handed over for a second time, as attempt 2


@dataclass
class Report:
    """What was done and what went unnoticed.

    Attributes:
        mutations: Rounds.
        by_kind: Rounds by kind of damage.
        undetected: A line for each round whose damage was not noticed.
        unreadable: A line for each round after which the hand-off, put back, did not come back bit
            by bit as it was written.
    """

    mutations: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    undetected: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Victim:
    """A committed hand-off: what it was made from, its ticket, the values a reader needs.

    `keys` are those of its reader: by ticket, or by its blocks and their last state.
    """

    sample: Sample
    ticket: Ticket
    keys: tuple[bytes, ...]
    is_by_prefix: bool = False

    @property
    def all_keys(self) -> tuple[bytes, ...]:
        """Keys of all values that were written for it."""
        sample, ticket = self.sample, self.ticket
        return tuple(
            {
                *sample.value_keys(ticket),
                *sample.prefix_keys(ticket),
                *sample.inner_keys(ticket),
            }
        )

    def by_prefix(self) -> Victim:
        """The same, for a reader who knows no ticket."""
        keys = tuple(self.sample.prefix_keys(self.ticket))
        return replace(self, keys=keys, is_by_prefix=True)


class World:
    """Committed hand-offs that can be damaged and put back.

    Args:
        backend: Where they are.
        draws: Decides everything random.
        clock: Monotonic seconds.
    """

    def __init__(self, backend: Backend, draws: Draws, clock: Callable[[], float]) -> None:
        self._backend = backend
        self.draws = draws
        self.store = KvStore(
            backend,
            sample_config(),
            fingerprint=draws.raw(FINGERPRINT_BYTES),
            clock=clock,
        )
        chosen = samples(draws.raw(8).hex())
        earlier = replace(chosen[_EARLIER], attempt=1)
        self._remembered: dict[bytes, bytes] = {}
        self._earlier = self._commit(earlier)
        self.victims = [self._commit(sample) for sample in chosen]

    def is_detected(self, victim: Victim) -> bool:
        """Whether a reader of the hand-off is told, or offered less."""
        return self._read(victim) in (Reading.REFUSED, Reading.LESS)

    def is_readable(self, victim: Victim) -> bool:
        """Whether the hand-off of this request, as it is now, comes back bit by bit."""
        request_id = victim.sample.request_id
        whole = next(one for one in self.victims if one.sample.request_id == request_id)
        return self._read(whole) is Reading.EXACT and self._read(whole.by_prefix()) is Reading.EXACT

    def damage(self, kind: str) -> Victim:
        """Applies one mutation of a kind; the hand-off that must not be readable now."""
        if kind.startswith(_PREFIX):
            with_blocks = [one for one in self.victims if one.sample.hashes]
            victim = self.draws.choice(with_blocks).by_prefix()
        else:
            victim = self.draws.choice(self.victims)
        apply: Callable[[Victim], Victim | None] = getattr(self, f"_{kind.removeprefix(_PREFIX)}")
        return apply(victim) or victim

    def restore(self) -> None:
        """Puts every hand-off back that was touched."""
        touched = [idx for idx, victim in enumerate(self.victims) if not self._is_whole(victim)]
        for idx in touched:
            self._remove(self.victims[idx])
        for idx in touched:
            self.victims[idx] = self._commit(self.victims[idx].sample)

    def close(self) -> None:
        """Removes everything that was written."""
        for victim in (*self.victims, self._earlier):
            self._remove(victim)

    def _read(self, victim: Victim) -> Reading:
        if victim.is_by_prefix:
            return read_prefix(self.store, victim.sample)
        return read_ticket(self.store, victim.ticket, victim.sample)

    def _commit(self, sample: Sample) -> Victim:
        ticket = sample.hand_over(self.store)
        victim = Victim(sample, ticket, tuple(sample.value_keys(ticket)))
        self._remembered.update(self._values(victim.all_keys))
        return victim

    def _is_whole(self, victim: Victim) -> bool:
        """Whether all its values are as they were written, and its lease and attempt as well."""
        ticket = victim.ticket
        keys = victim.all_keys
        now = self._values(keys)
        if any(now.get(key) != self._remembered[key] for key in keys):
            return False
        lease, attempt = victim.sample.control_keys(ticket)
        newest = self._backend.fence(attempt, 0, 0)
        return newest == ticket.attempt and all(self._backend.lookup([lease]))

    def _remove(self, victim: Victim) -> None:
        lease, attempt = victim.sample.control_keys(victim.ticket)
        for key in (*victim.all_keys, attempt):
            self._delete(key)
        self._drop_lease(lease)

    # Raw access through the ports

    def _values(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        names = list(keys)
        found: dict[bytes, bytes] = {}

        def keep(idx: int, value: memoryview | None) -> None:
            if value is not None:
                found[names[idx]] = bytes(value)

        self._backend.get(names, keep)
        return found

    def _write(self, key: bytes, value: bytes) -> None:
        self._delete(key)
        self._backend.put([PutItem(key, b"", value, _LIFE_MS)])

    def _delete(self, key: bytes) -> None:
        self._backend.quarantine(key, b"")

    def _drop_lease(self, key: bytes) -> None:
        self._backend.release(HandoffKeys(body=key, lease=key), None)

    def _key(self, victim: Victim) -> bytes:
        return self.draws.choice(victim.keys)

    # Kinds of damage

    def _flip(self, victim: Victim, first_bytes: int | None = None) -> None:
        key = self._key(victim)
        value = bytearray(self._remembered[key])
        place = self.draws.below(first_bytes or len(value))
        value[place] ^= 1 << self.draws.below(8)
        self._write(key, bytes(value))

    def _flip_header(self, victim: Victim) -> None:
        self._flip(victim, HEADER_BYTES)

    def _flip_attempt(self, victim: Victim) -> None:
        key = victim.sample.control_keys(victim.ticket)[1]
        value = bytearray(self._values([key])[key])
        value[self.draws.below(len(value))] ^= 1 << self.draws.below(8)
        self._write(key, bytes(value))

    def _swap(self, victim: Victim) -> None:
        values, one = self._remembered, self._key(victim)
        present = [key for other in self.victims for key in other.all_keys]
        other = self.draws.choice([key for key in present if values[key] != values[one]])
        self._write(one, values[other])
        self._write(other, values[one])

    def _truncate(self, victim: Victim) -> None:
        key = self._key(victim)
        value = self._remembered[key]
        self._write(key, value[: self.draws.below(len(value))])

    def _grow(self, victim: Victim) -> None:
        key = self._key(victim)
        self._write(key, self._remembered[key] + bytes(1 + self.draws.below(8)))

    def _reorder(self, _victim: Victim) -> Victim:
        """Payload segments or blocks of one hand-off rotated by one."""
        victim = self.draws.choice([other for other in self.victims if len(other.keys) > 2])
        keys = [key for key in victim.keys if b":b:" in key or b":t:" in key]
        for key, source in zip(keys, [*keys[1:], keys[0]], strict=True):
            self._write(key, self._remembered[source])
        return victim

    def _older_attempt(self, _victim: Victim) -> Victim:
        """The ticket of attempt 1 after attempt 2 was committed."""
        return self._earlier

    def _newer_attempt(self, victim: Victim) -> None:
        self.store.begin_attempt(victim.sample.request_id, victim.ticket.attempt + 1)

    def _other_revision(self, victim: Victim) -> None:
        """The value another model revision wrote for the same tokens."""
        key = self._key(victim)
        value = bytearray(self._remembered[key])
        value[8:16] = self.draws.raw(8)
        self._write(key, bytes(value))

    def _other_tenant(self, _victim: Victim) -> Victim:
        """Hand-off `a` read with the tokens of `a` under the salt of `c`, and the reverse."""
        one, other = self.draws.sample([self.victims[0], self.victims[2]], 2)
        return replace(one, sample=replace(one.sample, salt=other.sample.salt))

    def _other_tokens(self, victim: Victim) -> Victim:
        tokens = list(victim.sample.token_ids)
        tokens[self.draws.below(len(tokens))] += 1 + self.draws.below(49)
        return replace(victim, sample=replace(victim.sample, token_ids=tuple(tokens)))

    def _drop(self, victim: Victim) -> None:
        lease, attempt = victim.sample.control_keys(victim.ticket)
        # Who reads by prefix knows nothing of leases and attempts.
        control = () if victim.is_by_prefix else (lease, attempt)
        key = self.draws.choice([*victim.keys, *control])
        if key == lease:
            self._drop_lease(key)
        else:
            self._delete(key)

    def _half_written(self, victim: Victim) -> None:
        """A writer that died before its last steps: no body, and some of the rest missing."""
        rest = [key for key in victim.keys if b":h:" not in key]
        gone = set(self.draws.sample(rest, self.draws.below(len(rest))))
        for key in set(victim.keys) - set(rest) | gone:
            self._delete(key)
        if self.draws.below(2):
            self._drop_lease(victim.sample.control_keys(victim.ticket)[0])

    def _ticket(self, victim: Victim) -> Victim:
        change = self.draws.choice(TICKET_CHANGES)
        return replace(victim, ticket=replace(victim.ticket, **change))  # type: ignore[arg-type]


def mutate(
    backend: Backend,
    draws: Draws,
    *,
    count: int,
    clock: Callable[[], float],
    on_round: Callable[[int], None] = lambda _number: None,
) -> Report:
    """Runs `count` random mutations; the same draws give the same ones.

    Args:
        backend: The store to run in; what was written is removed at the end.
        draws: Decides everything random.
        count: Rounds.
        clock: Monotonic seconds.
        on_round: Told the number of each finished round.
    """
    world = World(backend, draws, clock)
    report = Report()
    try:
        for number in range(count):
            kind = draws.choice(KINDS)
            victim = world.damage(kind)
            report.mutations += 1
            report.by_kind[kind] += 1
            if not world.is_detected(victim):
                report.undetected.append(f"mutation {number}: {kind}")
            world.restore()
            if not world.is_readable(victim):
                report.unreadable.append(f"after mutation {number}: {kind}")
            on_round(number + 1)
    finally:
        world.close()
    return report
