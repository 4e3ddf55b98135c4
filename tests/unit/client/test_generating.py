"""What clients share: the whole answer out of the pieces, and a close when they are left."""

from collections.abc import AsyncGenerator, Generator
from typing import Any

from client.generating import AsyncGenerating, Generating
from client.types import Chunk, Sampling, Targets, Timing, Usage

PIECES = (
    Chunk(request_id="r", attempt=1, seq=2, token_ids=(3, 4), text="ab", seed=9),
    Chunk(
        request_id="r",
        attempt=2,
        seq=3,
        token_ids=(5,),
        text="c",
        finish_reason="length",
        usage=Usage(prompt_tokens=1, completion_tokens=3, cached_tokens=0),
        timing=Timing(),
    ),
)
SAMPLING = Sampling(max_tokens=3)
WANTED: dict[str, Any] = {
    "request_id": "r",
    "model": "m",
    "cache_salt": "s",
    "priority": 1,
    "targets": Targets(ttft_s=2.0),
    "timeout_s": 2.0,
}


class Scripted(Generating):
    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.is_closed = False

    def stream(self, prompt: Any, **asked: Any) -> Generator[Chunk]:
        self.asked = {"prompt": prompt, **asked}
        yield from PIECES

    def close(self) -> None:
        self.is_closed = True


class AsyncScripted(AsyncGenerating):
    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.is_closed = False

    async def stream(self, prompt: Any, **asked: Any) -> AsyncGenerator[Chunk]:
        self.asked = {"prompt": prompt, **asked}
        for piece in PIECES:
            yield piece

    async def close(self) -> None:
        self.is_closed = True


def test_the_whole_answer_is_that_of_the_pieces() -> None:
    with Scripted() as client:
        answer = client.generate("x", sampling=SAMPLING, **WANTED)
        assert not client.is_closed
    assert client.is_closed
    assert client.asked == {"prompt": "x", "sampling": SAMPLING, **WANTED}
    assert (answer.text, answer.token_ids, answer.seed) == ("abc", (3, 4, 5), 9)
    assert (answer.attempts, answer.finish_reason) == (2, "length")


async def test_so_it_is_for_asyncio() -> None:
    async with AsyncScripted() as client:
        answer = await client.generate("x", sampling=SAMPLING, **WANTED)
        assert not client.is_closed
    assert client.is_closed
    assert client.asked == {"prompt": "x", "sampling": SAMPLING, **WANTED}
    assert (answer.text, answer.token_ids) == ("abc", (3, 4, 5))
