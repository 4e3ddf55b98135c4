"""A writer or a reader of hand-offs as a process that may be killed at any moment.

Run as `python -m tests.fakes.store_worker ROLE URL SEED`. Writers put tickets into a list of the
server, readers take them from there. What must never happen goes into the list `wrong`.
"""

from __future__ import annotations

import json
import random
import sys
import time

import redis

from kvstore import KvStore, KvStoreConfig, Ticket, open_store
from kvstore.config import parse_url
from kvstore.errors import KvStoreError
from tests.fakes.stores import BLOCK_TOKENS, FINGERPRINT, Prompt

TICKETS, WRONG, COMMITTED, READ, REFUSED = (
    "t-tickets",
    "t-wrong",
    "t-committed",
    "t-read",
    "t-refused",
)


def open_shared(url: str, owner: str) -> KvStore:
    """A store whose leases end soon, so that the dead are found out quickly."""
    config = KvStoreConfig(
        block_tokens=BLOCK_TOKENS,
        owner=owner,
        segment_bytes=4096,
        lease_s=0.5,
        claim_ttl_s=0.5,
        discard_after_s=1.0,
    )
    return open_store(url, config, fingerprint=FINGERPRINT, clock=time.monotonic)


def make_prompt(seed: int) -> Prompt:
    """Prompts overlap: few distinct beginnings, so that writers meet at the same blocks."""
    generator = random.Random(seed)
    tokens = tuple(range(100 * generator.randrange(4), 100 * generator.randrange(4, 5) + 24))
    cut = generator.randrange(1, 40)
    return Prompt(f"r{seed}", tokens[:cut] or (1,), block_bytes=generator.choice([500, 9000]))


def write(store: KvStore, client: redis.Redis, generator: random.Random) -> None:
    seed = generator.randrange(2**31)
    prompt = make_prompt(seed)
    # Payload sizes differ by prompt, names do not: a salt keeps equal names to equal bytes.
    prompt = Prompt(
        prompt.request_id,
        prompt.token_ids,
        salt=str(prompt.block_bytes),
        block_bytes=prompt.block_bytes,
    )
    ticket = prompt.hand_over(store)
    fields = {name: getattr(ticket, name) for name in Ticket.__dataclass_fields__}
    encoded = {k: v.hex() if isinstance(v, bytes) else v for k, v in fields.items()}
    client.rpush(TICKETS, json.dumps([seed, encoded]))
    client.incr(COMMITTED)


def read(store: KvStore, client: redis.Redis) -> None:
    taken = client.blpop([TICKETS], timeout=0.2)
    if taken is None:
        return
    seed, encoded = json.loads(taken[1])
    for name in ("fingerprint", "last_block_hash", "tail_digest", "body_digest"):
        encoded[name] = bytes.fromhex(encoded[name])
    plain = make_prompt(seed)
    prompt = Prompt(
        plain.request_id, plain.token_ids, str(plain.block_bytes), block_bytes=plain.block_bytes
    )
    try:
        with store.open_ticket(Ticket(**encoded), prompt.token_ids, prompt.salt) as reader:
            state = reader.fetch()
    except KvStoreError as error:
        # A ticket may be too old by the time it is taken; its bytes may never be wrong.
        client.incr(REFUSED)
        if error.cause.startswith("corrupt"):
            client.rpush(WRONG, f"{seed}: {error}")
        return
    if (
        [bytes(block) for block in state.blocks] != prompt.payloads
        or bytes(state.tail_kv) != prompt.tail_kv
        or bytes(state.tail_state) != prompt.tail_state
    ):
        client.rpush(WRONG, f"{seed}: other bytes")
    client.incr(READ)


def main(role: str, url: str, seed: str) -> None:
    store = open_shared(url, f"{role}-{seed}")
    client = redis.Redis(unix_socket_path=parse_url(url).path)
    generator = random.Random(int(seed))
    while True:
        if role == "writer":
            write(store, client, generator)
        else:
            read(store, client)


if __name__ == "__main__":
    main(*sys.argv[1:])
