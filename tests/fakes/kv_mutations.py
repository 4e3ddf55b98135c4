"""Random damage to committed hand-offs, and what a reader makes of it.

A world holds several committed hand-offs over shared and private blocks, with payloads of one and
of several segments. Each round puts the world back, damages what one of the hand-offs needs and
reads that hand-off. The damage is detected when the read raises an error of the library.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvstore import KvStore, Ticket
from kvstore.errors import KvStoreError
from kvstore.keys import attempt_key, body_key, data_key, index_key, lease_key
from tests.fakes.stores import FINGERPRINT, Prompt, RawStore, make_store

KINDS = (
    "flip",
    "flip_header",
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
)

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


def prompts() -> list[Prompt]:
    shared = tuple(range(100, 112))
    return [
        Prompt("a", (*shared, 1, 2, 3, 4, 5), salt="one"),
        Prompt("b", (*shared, 9, 8), salt="one"),
        Prompt("c", (*shared, 1, 2, 3, 4, 5), salt="two"),
        Prompt("d", tuple(range(8)), block_bytes=300, salt="one"),
        Prompt("e", (5, 6, 7), attempt=2),
    ]


@dataclass
class Report:
    mutations: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    undetected: list[str] = field(default_factory=list)


@dataclass
class Victim:
    prompt: Prompt
    ticket: Ticket
    keys: list[bytes]
    """Values a reader of this hand-off needs."""


class World:
    """Committed hand-offs in a store that can be damaged and put back."""

    def __init__(self, raw: RawStore, generator: random.Random) -> None:
        self.raw = raw
        self.generator = generator
        self.store: KvStore
        self.victims: list[Victim]
        self.old_ticket: Ticket
        self.restore()

    def restore(self) -> None:
        self.raw.clear()
        self.store = make_store(self.raw.backend)
        old = replace(prompts()[4], attempt=1)
        self.old_ticket = old.hand_over(self.store)
        self.victims = [self._commit(prompt) for prompt in prompts()]

    def _commit(self, prompt: Prompt) -> Victim:
        ticket = prompt.hand_over(self.store)
        present = self.raw.values()
        keys = [key for key in present if ticket.handoff_id.encode() in key]
        for name in prompt.hashes:
            keys += [
                key
                for number in range(3)
                if (key := data_key(FINGERPRINT, name, 1, number)) in present  # type: ignore[arg-type]
            ]
            if (key := index_key(FINGERPRINT, name)) in present:
                keys.append(key)
        return Victim(prompt, ticket, sorted(keys))

    def is_detected(self, victim: Victim) -> bool:
        """Whether reading the hand-off raises. Whatever is returned otherwise is wrong."""
        try:
            with self.store.open_ticket(
                victim.ticket, victim.prompt.token_ids, victim.prompt.salt
            ) as reader:
                reader.fetch()
        except KvStoreError:
            return True
        return False

    def damage(self, kind: str) -> Victim:
        """Applies one mutation of a kind; the hand-off that must not be readable now."""
        victim = self.generator.choice(self.victims)
        apply: Callable[[Victim], Victim | None] = getattr(self, f"_{kind}")
        return apply(victim) or victim

    def _key(self, victim: Victim) -> bytes:
        return self.generator.choice(victim.keys)

    def _flip(self, victim: Victim) -> None:
        key = self._key(victim)
        value = bytearray(self.raw.values()[key])
        value[self.generator.randrange(len(value))] ^= 1 << self.generator.randrange(8)
        self.raw.write(key, bytes(value))

    def _flip_header(self, victim: Victim) -> None:
        key = self._key(victim)
        value = bytearray(self.raw.values()[key])
        value[self.generator.randrange(64)] ^= 1 << self.generator.randrange(8)
        self.raw.write(key, bytes(value))

    def _swap(self, victim: Victim) -> None:
        values = self.raw.values()
        one = self._key(victim)
        other = self.generator.choice([key for key in values if values[key] != values[one]])
        self.raw.write(one, values[other])
        self.raw.write(other, values[one])

    def _truncate(self, victim: Victim) -> None:
        key = self._key(victim)
        value = self.raw.values()[key]
        self.raw.write(key, value[: self.generator.randrange(len(value))])

    def _grow(self, victim: Victim) -> None:
        key = self._key(victim)
        self.raw.write(key, self.raw.values()[key] + bytes(self.generator.randrange(1, 9)))

    def _reorder(self, victim: Victim) -> Victim:
        """Payload segments or blocks of one hand-off rotated by one."""
        victim = self.generator.choice([v for v in self.victims if len(v.keys) > 2])
        values = self.raw.values()
        keys = [key for key in victim.keys if b":b:" in key or b":t:" in key]
        for key, source in zip(keys, [*keys[1:], keys[0]], strict=True):
            self.raw.write(key, values[source])
        return victim

    def _older_attempt(self, victim: Victim) -> Victim:
        """The ticket of attempt 1 after attempt 2 was committed."""
        return Victim(replace(self.victims[4].prompt, attempt=1), self.old_ticket, [])

    def _newer_attempt(self, victim: Victim) -> None:
        self.store.begin_attempt(victim.prompt.request_id, victim.ticket.attempt + 1)

    def _other_revision(self, victim: Victim) -> None:
        """The value another model revision wrote for the same tokens."""
        key = self._key(victim)
        value = bytearray(self.raw.values()[key])
        value[8:16] = self.generator.randbytes(8)
        self.raw.write(key, bytes(value))

    def _other_tenant(self, victim: Victim) -> Victim:
        """Hand-off `a` read with the tokens of `a` under the salt of `c`, and the reverse."""
        one, other = self.generator.sample([self.victims[0], self.victims[2]], 2)
        return Victim(replace(one.prompt, salt=other.prompt.salt), one.ticket, [])

    def _other_tokens(self, victim: Victim) -> Victim:
        tokens = list(victim.prompt.token_ids)
        tokens[self.generator.randrange(len(tokens))] += self.generator.randrange(1, 50)
        return Victim(replace(victim.prompt, token_ids=tuple(tokens)), victim.ticket, [])

    def _drop(self, victim: Victim) -> None:
        choices = [*victim.keys, lease_key(victim.ticket.handoff_id)]
        choices.append(attempt_key(victim.prompt.request_id))
        key = self.generator.choice(choices)
        if b":l:" in key:
            self.raw.drop_lease(key)
        else:
            self.raw.delete(key)

    def _half_written(self, victim: Victim) -> None:
        """A writer that died before its last steps: no body, and some of the rest missing."""
        self.raw.delete(body_key(victim.ticket.handoff_id))
        if self.generator.random() < 0.5:
            self.raw.drop_lease(lease_key(victim.ticket.handoff_id))
        rest = [key for key in victim.keys if b":h:" not in key]
        for key in self.generator.sample(rest, self.generator.randrange(len(rest))):
            self.raw.delete(key)

    def _ticket(self, victim: Victim) -> Victim:
        change = self.generator.choice(TICKET_CHANGES)
        ticket = replace(victim.ticket, **change)  # type: ignore[arg-type]
        return Victim(victim.prompt, ticket, [])


def mutate(raw: RawStore, count: int, seed: int) -> Report:
    """Runs `count` random mutations; the same seed gives the same ones."""
    generator = random.Random(seed)
    world = World(raw, generator)
    report = Report()
    for number in range(count):
        kind = generator.choice(KINDS)
        world.restore()
        victim = world.damage(kind)
        report.mutations += 1
        report.by_kind[kind] += 1
        if not world.is_detected(victim):
            report.undetected.append(f"mutation {number} of seed {seed}: {kind}")
    return report
