"""Hand-offs that decode reads ahead beside hand-offs that it reads after the ticket; one run.

    python -m benchmarks.overlap --json [--repetitions 9] [--prompt-tokens 1000 2000 3900]

Starts two systems (1 prefill + 1 decode rank and a private store each), alike but for
`handoff.overlap`, and sends the same fresh prompts to both in turn. Prints one object on its last
line; for each length of prompt:

    ttft_ms, second_token_ms: {on, off, ratio}: client send to the first (second) token received
    gap_ms: {on, off, ratio}: first to second token, where the hand-off shows
    commit_ms, fetch_ms: {on, off, ratio}
        from the first token to the committed ticket; from the ticket to the verified state
    prefetched_share: bytes that were read ahead, of all bytes of the hand-off
    environment, chunk_tokens

Ratios are medians over pairs that ran one after the other, with overlap over without.
"""

import argparse
import asyncio
import json
import random
from contextlib import AbstractContextManager
from typing import Any

from benchmarks.environment import describe, median, ratio_of_pairs
from benchmarks.serving import SEED, Sample, ask_system, running_system
from client import AsyncClient

OUTPUT_TOKENS = 8


def system(*, overlap: bool, chunk_tokens: int) -> AbstractContextManager[str]:
    """A system with or without overlap; see `benchmarks.serving.running_system`."""
    settings = {
        "DISAGG_HANDOFF__OVERLAP": str(overlap).lower(),
        "DISAGG_ENGINE__MAX_NUM_BATCHED_TOKENS": str(chunk_tokens),
    }
    return running_system("--prefill-ranks", "1", "--decode-ranks", "1", settings=settings)


def compare(on: list[float], off: list[float]) -> dict[str, float]:
    """Medians in milliseconds of samples in seconds, and the ratio of pairs."""
    return {
        "on": round(1e3 * median(on), 2),
        "off": round(1e3 * median(off), 2),
        "ratio": round(ratio_of_pairs(on, off), 3),
    }


def summary(on: list[tuple[Sample, Any]], off: list[tuple[Sample, Any]]) -> dict[str, Any]:
    """What is reported of the pairs of one length."""

    def both(value: Any) -> dict[str, float]:
        return compare([value(*pair) for pair in on], [value(*pair) for pair in off])

    return {
        "ttft_ms": both(lambda sample, _: sample.first),
        "second_token_ms": both(lambda sample, _: sample.second),
        "gap_ms": both(lambda sample, _: sample.second - sample.first),
        "commit_ms": both(lambda _, timing: timing.commit_us / 1e6),
        "fetch_ms": both(lambda _, timing: timing.fetch_us / 1e6),
        "prefetched_share": round(
            median([timing.prefetched_bytes / timing.fetched_bytes for _, timing in on]), 3
        ),
    }


async def measure(
    on_address: str, off_address: str, repetitions: int, lengths: list[int]
) -> dict[str, Any]:
    """Pairs of requests for each length, the first pair of which warms up."""
    rng = random.Random(SEED)
    found: dict[str, Any] = {}
    async with AsyncClient(on_address) as with_overlap, AsyncClient(off_address) as without:
        for length in lengths:
            on: list[tuple[Sample, Any]] = []
            off: list[tuple[Sample, Any]] = []
            for number in range(repetitions + 1):
                prompt = [rng.randrange(3, 2048) for _ in range(length)]
                order = [(with_overlap, on), (without, off)]
                for client, samples in order if number % 2 else order[::-1]:
                    sample = await ask_system(client, prompt, OUTPUT_TOKENS)
                    if number:
                        samples.append(sample)
            found[str(length)] = summary(on, off)
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__)
    parser.add_argument("--json", action="store_true", help="only the object, on one line")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[1000, 2000, 3900])
    parser.add_argument("--chunk-tokens", type=int, default=512)
    options = parser.parse_args()
    chunk = options.chunk_tokens
    with (
        system(overlap=True, chunk_tokens=chunk) as on,
        system(overlap=False, chunk_tokens=chunk) as off,
    ):
        lengths = asyncio.run(measure(on, off, options.repetitions, options.prompt_tokens))
    result = {"prompts": lengths, "chunk_tokens": chunk, "environment": describe(SEED)}
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
