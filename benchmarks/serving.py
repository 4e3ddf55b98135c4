"""The disaggregated path beside one engine in one process: same model, same prompts, one run.

    python -m benchmarks.serving --json [--repetitions 9] [--prompt-tokens 1000]

Starts a system (1 prefill + 1 decode rank, private store) and an engine in this process, and sends
both the same fresh prompts in turn. Prints one object on its last line:

    ttft_ms, second_token_ms: {system, monolith, ratio}
        client send to the first (second) token received. The prefill side yields the first token,
        so what the hand-off costs shows in the second
    tpot_ms: {system, monolith, ratio}: mean gap of the tokens after the second
    handoff: {commit_ms, fetch_ms, share_of_ttft}
        from the first token to the committed ticket; from the ticket to the verified state; both
        together over the monolith's TTFT
    bytes: {published, fetched, per_prompt_token, layout_per_token, state}
        written for and read by one request; what the layout calls for a token and a state
    prefix_ttft_ms: {cold, warm, ratio}: the same prompt a second time, from stored blocks
    environment

Ratios are medians over pairs that ran one after the other.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.environment import REPOSITORY, describe, median, ratio_of_pairs
from client import AsyncClient, Sampling
from engine.async_engine import AsyncEngine
from engine.build import build_engine
from engine.config import EngineSettings
from engine.request import EngineRequest, SamplingParams, TokenOut

MODEL = REPOSITORY / "models" / "tiny-v4"
SEED = 0


@dataclass(frozen=True)
class Sample:
    """Seconds after sending: first token, second token; then seconds a later token."""

    first: float
    second: float
    later: float


@contextlib.contextmanager
def running_system(*flags: str, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Starts `disagg up` as a process of its own and yields the balancer's address.

    Args:
        flags: Of the command.
        settings: Environment of all its processes, beside what there is.
    """
    command = [sys.executable, "-m", "cli", "up", "--json", "--model", str(MODEL), *flags]
    environment = {**os.environ, **(settings or {})}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit("disagg up did not start; see its messages above")
            yield json.loads(line)["address"]
        finally:
            process.terminate()
            process.wait(60)


def _sample(begin: float, arrivals: list[float]) -> Sample:
    later = (arrivals[-1] - arrivals[1]) / (len(arrivals) - 2)
    return Sample(first=arrivals[0] - begin, second=arrivals[1] - begin, later=later)


async def ask_system(
    client: AsyncClient, prompt: list[int], output_tokens: int
) -> tuple[Sample, Any]:
    """One request through the whole system; also returns its timing."""
    arrivals: list[float] = []
    timing = None
    begin = time.perf_counter()
    sampling = Sampling(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
    async for chunk in client.stream(prompt, sampling=sampling):
        arrivals.extend([time.perf_counter()] * len(chunk.token_ids))
        timing = chunk.timing or timing
    return _sample(begin, arrivals), timing


async def ask_engine(
    engine: AsyncEngine, name: str, prompt: list[int], output_tokens: int
) -> Sample:
    """The same request to the engine of this process."""
    arrivals: list[float] = []
    begin = time.perf_counter()
    request = EngineRequest(
        request_id=name,
        token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=output_tokens, ignore_eos=True),
    )
    async with engine.submit(request) as handle:
        async for event in handle:
            if isinstance(event, TokenOut):
                arrivals.append(time.perf_counter())
    return _sample(begin, arrivals)


def _compare(system: list[float], monolith: list[float]) -> dict[str, float]:
    return {
        "system": round(1e3 * median(system), 2),
        "monolith": round(1e3 * median(monolith), 2),
        "ratio": round(ratio_of_pairs(system, monolith), 3),
    }


async def measure(
    address: str, repetitions: int, prompt_tokens: int, output_tokens: int
) -> dict[str, Any]:
    """Runs everything against a running system and returns the object described above."""
    rng = random.Random(SEED)
    built = build_engine(
        MODEL, EngineSettings(num_pages=256, max_num_seqs=32, max_num_batched_tokens=512)
    )
    engine = AsyncEngine(built.engine, clock=time.monotonic)
    engine.start()
    system, monolith, timings, warm = [], [], [], []
    try:
        async with AsyncClient(address) as client:
            for number in range(repetitions + 1):
                prompt = [rng.randrange(3, 2048) for _ in range(prompt_tokens)]
                alone = await ask_engine(engine, f"m-{number}", prompt, output_tokens)
                whole, timing = await ask_system(client, prompt, output_tokens)
                again, _ = await ask_system(client, prompt, output_tokens)
                if number:  # the first round warms up
                    monolith.append(alone)
                    system.append(whole)
                    timings.append(timing)
                    warm.append(again)
    finally:
        await engine.stop()
        built.ports.close()
    commit = [timing.commit_us / 1e6 for timing in timings]
    fetch = [timing.fetch_us / 1e6 for timing in timings]
    handoff = [c + f for c, f in zip(commit, fetch, strict=True)]
    layout = built.layout
    return {
        "prompt_tokens": prompt_tokens,
        "ttft_ms": _compare([s.first for s in system], [s.first for s in monolith]),
        "second_token_ms": _compare([s.second for s in system], [s.second for s in monolith]),
        "tpot_ms": _compare([s.later for s in system], [s.later for s in monolith]),
        "handoff": {
            "commit_ms": round(1e3 * median(commit), 2),
            "fetch_ms": round(1e3 * median(fetch), 2),
            "share_of_ttft": round(ratio_of_pairs(handoff, [s.first for s in monolith]), 3),
        },
        "bytes": {
            "published": timings[-1].published_bytes,
            "fetched": timings[-1].fetched_bytes,
            "per_prompt_token": round(timings[-1].fetched_bytes / prompt_tokens, 1),
            "layout_per_token": layout.block_bytes / layout.block_tokens,
            "state": layout.state_bytes(prompt_tokens),
        },
        "prefix_ttft_ms": {
            "cold": round(1e3 * median([s.first for s in system]), 2),
            "warm": round(1e3 * median([s.first for s in warm]), 2),
            "ratio": round(ratio_of_pairs([s.first for s in warm], [s.first for s in system]), 3),
        },
        "environment": describe(SEED),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--json", action="store_true", help="only the object, on one line")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--prompt-tokens", type=int, default=1000)
    parser.add_argument("--output-tokens", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with running_system("--prefill-ranks", "1", "--decode-ranks", "1") as address:
        result = asyncio.run(
            measure(address, options.repetitions, options.prompt_tokens, options.output_tokens)
        )
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
