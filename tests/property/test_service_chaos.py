"""Many requests at once, cancelled anywhere, over a store that is damaged meanwhile.

Whoever is not cancelled ends with exactly the tokens of an undisturbed run, through the retries the
balancer would make; afterwards nobody holds anything.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from kvstore.errors import BlockCorrupt, BlockMissing, KvStoreError, StaleAttempt
from tests.fakes.services import (
    Rig,
    SequenceRequest,
    outcome,
    prompt,
    run_decode,
    run_prefill,
    running_rig,
    tokens,
    until,
)
from tests.fakes.toy_runner import expected_tokens

MAX_TRIES = 12


async def _journey(rig: Rig, request_id: str, token_ids: tuple[int, ...], max_tokens: int):  # type: ignore[no-untyped-def]
    """One request with the retries of a balancer: what is missing or corrupt is computed anew."""
    attempt, num_tries, bypass = 1, 0, False
    while True:
        ticket = None
        try:
            asked = prompt(
                token_ids,
                request_id=request_id,
                attempt=attempt,
                max_tokens=max_tokens,
                bypass_prefix=bypass,
            )
            first, ticket = outcome(await run_prefill(rig, asked))
            if ticket is None:
                return [first]
            sequence = SequenceRequest(
                request_id=request_id,
                attempt=attempt,
                ticket=ticket,
                token_ids=token_ids,
                num_generated=0,
                sampling=asked.sampling,
            )
            return [first, *await run_decode(rig, sequence)]
        except (BlockMissing, BlockCorrupt, StaleAttempt) as error:
            num_tries += 1
            if num_tries == MAX_TRIES:
                raise
            attempt = max(attempt, error.newest if isinstance(error, StaleAttempt) else 0) + 1
            bypass = isinstance(error, BlockCorrupt)
        finally:
            if ticket is not None:
                # A ticket whose decode did not take it over is the caller's to drop.
                rig.store.abort(ticket.handoff_id)


async def _damage(rig: Rig, generator: random.Random, rounds: int) -> int:
    """Flips, swaps and drops stored bytes behind everybody's back."""
    damaged = 0
    for _ in range(rounds):
        await asyncio.sleep(0.002)
        with rig.backend._lock:
            keys = [
                key
                for key in rig.backend._values
                if b":b:" in key or b":t:" in key or b":a:" in key
            ]
            if not keys:
                continue
            first, second = generator.choice(keys), generator.choice(keys)
            values = rig.backend._values
            kind = generator.randrange(3)
            if kind == 0:
                data = values[first].data
                data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
            elif kind == 1:
                values[first], values[second] = values[second], values[first]
            else:
                del values[first]
            damaged += 1
    return damaged


@pytest.mark.medium
@pytest.mark.parametrize(("seed", "rounds"), [(0, 0), (1, 0), (2, 60), (3, 60), (4, 60), (5, 60)])
async def test_survivors_are_exact_and_nothing_is_left(seed: int, rounds: int) -> None:
    generator = random.Random(seed)
    async with running_rig(
        prefill={"num_pages": 40, "max_num_seqs": 3, "max_waiting": 64},
        decode={"num_pages": 40, "max_num_seqs": 3, "max_waiting": 64},
    ) as rig:
        rig.prefill_budget._max_waiting = rig.decode_budget._max_waiting = 64
        requests = [
            # A few prompts that share prefixes, of lengths around block borders.
            (f"r-{idx}", tokens(generator.randrange(1, 90), generator.randrange(3)))
            for idx in range(40)
        ]
        tasks = {
            request_id: asyncio.create_task(_journey(rig, request_id, ids, 10))
            for request_id, ids in requests
        }
        damaging = asyncio.create_task(_damage(rig, random.Random(seed), rounds))
        victims = generator.sample(sorted(tasks), 12)
        for victim in victims:
            await asyncio.sleep(generator.random() * 0.01)
            tasks[victim].cancel()
        results = await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert (await damaging > 0) is (rounds > 0)
        for (request_id, ids), result in zip(requests, results, strict=True):
            if isinstance(result, asyncio.CancelledError):
                assert request_id in victims
                continue
            assert not isinstance(result, KvStoreError | Exception), (request_id, result)
            assert result == expected_tokens(ids, prompt(ids, max_tokens=10).sampling), request_id
        if rounds:
            # A hand-off whose body was damaged cannot be given back by its name; what it leaves
            # is listed here and dies by its time to live.
            for record in rig.store.audit():
                rig.store.abort(record.handoff_id)
            await until(lambda: not set(rig.held()) - {"leases"}, lambda: str(rig.held()))
        else:
            await rig.assert_at_rest()
