"""Many requests at once, cancelled anywhere, over a store that is damaged meanwhile.

Whoever is not cancelled ends with exactly the tokens of an undisturbed run, through the retries the
balancer would make; afterwards nobody holds anything.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncGenerator

import pytest

from decode_service.prefetch import PrefetchRequest
from kvstore import Ticket
from kvstore.errors import BlockCorrupt, BlockMissing, KvStoreError, StaleAttempt
from prefill_service.prefill import Committed, PrefillEvent, PromptRequest
from prefill_service.stored import BlocksStored
from tests.fakes.services import (
    Rig,
    SequenceRequest,
    outcome,
    prompt,
    run_decode,
    running_rig,
    tokens,
    until,
)
from tests.fakes.toy_runner import expected_tokens

MAX_TRIES = 12


class _Ahead:
    """A prefetch beside one attempt, told what prefill reports; ended with the attempt."""

    def __init__(self, rig: Rig, asked: PromptRequest) -> None:
        self._counts: asyncio.Queue[int | None] = asyncio.Queue()
        request = PrefetchRequest(
            request_id=asked.request_id,
            attempt=asked.attempt,
            token_ids=asked.token_ids,
            cache_salt=asked.cache_salt,
            credit_id="",
        )
        self._task = asyncio.create_task(rig.prefetches.run(request, self._told()))

    async def _told(self) -> AsyncGenerator[int]:
        while (count := await self._counts.get()) is not None:
            yield count

    def tell(self, event: PrefillEvent) -> None:
        if isinstance(event, BlocksStored):
            self._counts.put_nowait(event.num_blocks)
        elif isinstance(event, Committed):
            self._counts.put_nowait(None)

    @property
    def found_damage(self) -> bool:
        done = self._task.done() and not self._task.cancelled()
        return done and isinstance(self._task.exception(), BlockCorrupt)

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def _attempt(
    rig: Rig, asked: PromptRequest, ahead: _Ahead | None, tickets: list[Ticket]
) -> list[int]:
    events: list[PrefillEvent] = []

    async def emit(event: PrefillEvent) -> None:
        events.append(event)
        if isinstance(event, Committed) and event.ticket is not None:
            # From here on it is the caller's, even if the prefill does not come to its end.
            tickets.append(event.ticket)
        if ahead is not None:
            ahead.tell(event)

    await rig.prefill.run(asked, emit)
    first, ticket = outcome(events)
    if ticket is None:
        return [first]
    sequence = SequenceRequest(
        request_id=asked.request_id,
        attempt=asked.attempt,
        ticket=ticket,
        token_ids=asked.token_ids,
        num_generated=0,
        sampling=asked.sampling,
    )
    return [first, *await run_decode(rig, sequence)]


async def _journey(
    rig: Rig, request_id: str, token_ids: tuple[int, ...], max_tokens: int, overlap: bool
) -> list[int]:
    """One request with the retries of a balancer: what is missing or corrupt is computed anew."""
    attempt, num_tries, bypass = 1, 0, False
    while True:
        asked = dataclasses.replace(
            prompt(token_ids, request_id=request_id, attempt=attempt, max_tokens=max_tokens),
            bypass_prefix=bypass,
            report_stored=overlap,
        )
        ahead = _Ahead(rig, asked) if overlap else None
        tickets: list[Ticket] = []
        try:
            return await _attempt(rig, asked, ahead, tickets)
        except (BlockMissing, BlockCorrupt, StaleAttempt) as error:
            num_tries += 1
            if num_tries == MAX_TRIES:
                raise
            attempt = max(attempt, error.newest if isinstance(error, StaleAttempt) else 0) + 1
            bypass = isinstance(error, BlockCorrupt) or (ahead is not None and ahead.found_damage)
        finally:
            for ticket in tickets:
                # A ticket whose decode did not take it over is the caller's to drop.
                rig.store.abort(ticket.handoff_id)
            if ahead is not None:
                await ahead.end()


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
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("seed", "rounds"), [(0, 0), (1, 0), (2, 60), (3, 60), (4, 60), (5, 60)])
async def test_survivors_are_exact_and_nothing_is_left(
    seed: int, rounds: int, overlap: bool
) -> None:
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
            request_id: asyncio.create_task(_journey(rig, request_id, ids, 10, overlap))
            for request_id, ids in requests
        }
        damaging = asyncio.create_task(_damage(rig, random.Random(seed), rounds))
        victims = generator.sample(sorted(tasks), 12)
        for victim in victims:
            await asyncio.sleep(generator.random() * 0.01)
            tasks[victim].cancel()
        results = await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert (rig.metrics.value("disagg_prefetch_blocks_total", result="used") > 0) is overlap
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
