"""Client, balancer, prefill, store and decode as processes: answers, resumption, nothing left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import redis

from cli.local.launcher import System
from client import AsyncClient, ChatMessage, Client, ClientError, Sampling
from kvstore.keys import attempt_key
from tests.fakes.holdings import nothing_is_held, statistics
from tests.fakes.processes import ROOT
from tests.fakes.systems import launched

pytestmark = [pytest.mark.medium, pytest.mark.timeout(200)]

MODEL = ROOT / "models" / "tiny-v4"
GOLDEN = json.loads((MODEL / "golden.json").read_text(encoding="utf-8"))["cases"]
LEGS = ("decode", "prefill")
LONG = next(case for case in GOLDEN if len(case["input_ids"]) == 350)


def greedy(max_tokens: int = 64) -> Sampling:
    return Sampling(max_tokens=max_tokens, ignore_eos=True)


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with launched(decode_ranks=2) as running:
        yield running


@asynccontextmanager
async def client_of(system: System) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(system.address, timeout_s=60.0) as client:
        yield client


async def test_golden_prompts_at_once(system: System) -> None:
    async with client_of(system) as client:
        answers = await asyncio.gather(
            *(client.generate(case["input_ids"], sampling=greedy()) for case in GOLDEN[:8])
        )
    for case, whole in zip(GOLDEN, answers, strict=False):
        assert list(whole.token_ids) == case["greedy_ids"], case["name"]
        assert whole.finish_reason == "length"
        assert whole.timing.published_bytes > 0
        assert whole.timing.fetched_bytes > 0
    assert len({whole.timing.decode_member for whole in answers}) == 2
    await nothing_is_held(system)


async def test_text_in_text_out(system: System) -> None:
    chat = next(case for case in GOLDEN if case["name"] == "chat: greeting")
    user = "Good morrow, my gentle lord. What news from the field?"
    async with client_of(system) as client:
        whole = await client.generate([ChatMessage(role="user", content=user)])
        assert whole.usage.prompt_tokens == len(chat["input_ids"])
        assert whole.text == "I am a man of the LORD."
        assert whole.finish_reason == "stop"
        cut = await client.generate(
            [ChatMessage(role="user", content=user)], sampling=Sampling(stop=(" of",))
        )
        assert (cut.text, cut.finish_reason) == ("I am a man", "stop")
    await nothing_is_held(system)


async def test_sampled_answers_repeat_and_resume_exactly(system: System) -> None:
    sampling = Sampling(max_tokens=40, temperature=0.9, top_p=0.95, ignore_eos=True, seed=11)
    prompt = GOLDEN[0]["input_ids"]
    async with client_of(system) as client:
        whole = await client.generate(prompt, sampling=sampling)
        again = await client.generate(prompt, sampling=sampling)
        assert again.token_ids == whole.token_ids
        stream = client.stream(prompt, sampling=sampling, request_id="resumed", last_seq=17)
        rest = [token async for chunk in stream for token in chunk.token_ids]
        assert tuple(rest) == whole.token_ids[17:]
        other = await client.generate(prompt, sampling=Sampling(max_tokens=40, temperature=0.9))
        assert other.token_ids != whole.token_ids


async def test_a_stored_prefix_is_used_and_a_corrupt_one_is_not(system: System) -> None:
    async with client_of(system) as client:
        await client.generate(LONG["input_ids"], sampling=greedy())
        cached = await client.generate(LONG["input_ids"], sampling=greedy())
        assert cached.usage.cached_tokens >= 32
        assert list(cached.token_ids) == LONG["greedy_ids"]
        assert await asyncio.to_thread(_flip_every_block, system.store_url) >= 10
        whole = await client.generate(LONG["input_ids"], sampling=greedy())
        assert list(whole.token_ids) == LONG["greedy_ids"]
        assert whole.attempts == 2  # decode proved the blocks wrong, prefill computed them anew
    await nothing_is_held(system)


def _flip_every_block(url: str) -> int:
    """Changes one byte of every stored block and state; returns how many."""
    connection = redis.Redis(unix_socket_path=url.removeprefix("unix://"))
    keys = [key for key in connection.scan_iter("dkv1:*") if b":b:{" in key]
    for key in keys:
        last = connection.strlen(key) - 1
        byte = connection.getrange(key, last, last)
        connection.setrange(key, last, bytes([byte[0] ^ 1]))
    connection.close()
    return len(keys)


async def test_a_damaged_record_of_attempts_costs_an_attempt_and_no_answer(system: System) -> None:
    """One bit of it is flipped as soon as it is there, while the prompt computes."""
    names = [f"damaged-{number}" for number in range(6)]
    damaging = asyncio.create_task(
        asyncio.to_thread(_flip_records, system.store_url, [attempt_key(name) for name in names])
    )
    async with client_of(system) as client:
        answers = [
            await client.generate(LONG["input_ids"], sampling=greedy(), request_id=name)
            for name in names
        ]
    assert await damaging == len(names)
    assert all(list(answer.token_ids) == LONG["greedy_ids"] for answer in answers)
    assert all(answer.attempts <= 2 for answer in answers)
    assert any(answer.attempts == 2 for answer in answers)
    await nothing_is_held(system)


def _flip_records(url: str, keys: list[bytes]) -> int:
    """Waits for each key in turn and flips a bit of its first byte; returns how many."""
    connection = redis.Redis(unix_socket_path=url.removeprefix("unix://"))
    num_flipped = 0
    for key in keys:
        for _ in range(200_000):
            if first := connection.getrange(key, 0, 0):
                connection.setrange(key, 0, bytes([first[0] ^ 2]))
                num_flipped += 1
                break
    connection.close()
    return num_flipped


@pytest.mark.parametrize("tokens", [0, 1, 2, 9])
@pytest.mark.parametrize("how", ["close", "cancel", "deadline"])
async def test_leaving_early_frees_everything(system: System, tokens: int, how: str) -> None:
    request_id = f"leave-{how}-{tokens}"
    async with client_of(system) as client:
        timeout_s = 0.05 * (tokens + 1) if how == "deadline" else 60.0
        stream = client.stream(
            LONG["input_ids"],
            sampling=greedy(2000),
            request_id=request_id,
            timeout_s=timeout_s,
        )
        async with aclosing(stream) as chunks:
            if how == "deadline":
                with pytest.raises(ClientError, match=r"longer than|Deadline") as caught:
                    await _read(chunks)
                assert caught.value.code == "DEADLINE_EXCEEDED"
            elif how == "close":
                await _leave_after(chunks, tokens)
            else:
                reading = asyncio.gather(_read(chunks))
                for _ in range(400):
                    if await client.cancel(request_id):
                        break
                    await asyncio.sleep(0.01 * tokens)
                [last] = await reading
                assert last.finish_reason == "abort"
    await nothing_is_held(system)


async def _read(chunks):  # type: ignore[no-untyped-def]
    return [chunk async for chunk in chunks][-1]


async def _leave_after(chunks, tokens: int) -> None:  # type: ignore[no-untyped-def]
    """Leaves after so many tokens; after none: while the first is still being computed."""
    if tokens == 0:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await _read(chunks)
        return
    async for chunk in chunks:
        if chunk.seq >= tokens:
            return


def test_bad_requests_hurt_nobody(system: System) -> None:
    with Client(system.address) as client:
        for prompt, sampling in (
            ("", Sampling()),
            ([5000], Sampling()),
            ("x", Sampling(top_p=0.0)),
            ([1] * 4096, Sampling()),
        ):
            with pytest.raises(ClientError) as caught:
                client.generate(prompt, sampling=sampling)
            assert caught.value.code == "INVALID_ARGUMENT"
        empty = client.generate("x", sampling=Sampling(max_tokens=0))
        assert (empty.token_ids, empty.finish_reason) == ((), "length")
        one = client.generate("x", sampling=Sampling(max_tokens=1, ignore_eos=True))
        assert len(one.token_ids) == 1
        assert one.timing.decode_member == ""


def test_nothing_was_repeated_but_for_the_corruption(system: System) -> None:
    values = statistics(system)
    repeated = {key for key, value in values.items() if "redispatch" in key and value}
    # Damage is found by whoever looks first, before the ticket or behind it.
    corrupt = {f"disagg_redispatch_total{{reason=corrupt,stage={leg}}}" for leg in LEGS}
    assert repeated & corrupt
    assert repeated <= corrupt
    assert values["clean_ups_failed"] == 0


def test_logs_hold_no_prompt_and_no_tokens(system: System) -> None:
    for path in Path(system.directory).glob("*.log"):
        text = path.read_text(encoding="utf-8")
        assert "token_ids" not in text
        assert "Good morrow" not in text
