"""Windows rebuilt by replay equal those computed whole, bit by bit, and nothing stored changes.

Blocks are given without the state behind them, as a store without boundary states gives them; the
replay runs in memory full of what others left. Everything a later token may read is compared: full
blocks, windows of all layers, raw rows of the compressors, and logits.
"""

import dataclasses
import functools
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineRole, EngineSettings, ModelLimits
from engine.engine import LLMEngine
from engine.handoff import LayoutError, SequenceImage
from engine.kv_connector import InMemoryExport
from engine.model_runner import ModelRunner
from engine.request import EngineRequest, RequestFailed, SamplingParams
from tests.fakes.checkpoints import with_layers
from tests.fakes.models import GOLDEN, TINY, LoadedModel, Solo, load
from tests.fakes.tensors import normal

HCA8 = GOLDEN / "v4_hca8"

# Of that model: window and CSA with hash routing, then HCA, CSA and HCA with a gate.
HASHED, GATED = (0, 1), (2, 3, 4)
LAYERS = st.tuples(
    st.lists(st.sampled_from(HASHED), max_size=2), st.lists(st.sampled_from(GATED), max_size=3)
).filter(any)


@functools.cache
def model_of(layers: tuple[int, ...], window: int, top_k: int, quantisers: str) -> LoadedModel:
    with tempfile.TemporaryDirectory() as directory:
        return load(
            with_layers(HCA8, Path(directory), layers, sliding_window=window, index_topk=top_k),
            quantisers,
        )


def tokens(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 256, (count,), generator=generator).tolist()


def dirty_runner(model: LoadedModel) -> ModelRunner:
    runner = model.runner(num_pages=40, num_slots=2)
    pool = runner._pool
    pool.rows[pool.pages_at :] = normal(*pool.rows[pool.pages_at :].shape) * 10.0
    for ring in [*pool.rings.values(), *pool.index_rings.values()]:
        ring.copy_(normal(*ring.shape) * 10.0)
    return runner


def without_state(image: SequenceImage, replay_tokens: int) -> SequenceImage:
    begin = image.num_tokens - replay_tokens
    return dataclasses.replace(image, state=b"", replay_from=begin)


@pytest.mark.medium
@settings(max_examples=20)
@given(
    layers=LAYERS,
    window=st.sampled_from((1, 2, 3, 4, 5, 6, 9, 16, 18)),
    top_k=st.sampled_from((4, 8)),
    quantisers=st.sampled_from(("off", "on")),
    earlier=st.integers(0, 5),
    chunk=st.sampled_from((1, 3, 7, 32, 2048)),
    more=st.integers(1, 40),
    seed=st.integers(0, 9),
)
def test_a_replayed_state_has_the_bits_of_the_one_computed_whole(
    layers: tuple[list[int], list[int]],
    window: int,
    top_k: int,
    quantisers: str,
    earlier: int,
    chunk: int,
    more: int,
    seed: int,
) -> None:
    model = model_of((*layers[0], *layers[1]), window, top_k, quantisers)
    replay = model.layout.window_replay_tokens + earlier
    block = model.layout.block_tokens
    end = (replay // block + 1) * block
    prompt = tokens(seed, end + more)
    whole = Solo(model)
    whole.feed(prompt[:end])
    expected = whole.image()
    logits = whole.feed(prompt[end:])

    first = Solo(model, dirty_runner(model))
    first.resume(without_state(expected, replay))
    first.feed(prompt[end - replay : end], chunk=chunk)
    assert first.image() == expected

    # The chunk in which the replay ends goes on behind it, and writes entries there.
    through = Solo(model, dirty_runner(model))
    through.resume(without_state(expected, replay))
    assert torch.equal(through.feed(prompt[end - replay :], chunk=chunk), logits)
    assert through.image() == whole.image()


@pytest.mark.medium
@pytest.mark.parametrize("directory", [HCA8, TINY], ids=lambda path: path.name)
def test_one_token_less_is_not_exact_and_refused(directory: Path) -> None:
    """The length is the least there is: what these tests compare would notice any shorter one."""
    model = load(directory)
    replay = model.layout.window_replay_tokens
    end = (replay // model.layout.block_tokens + 2) * model.layout.block_tokens
    prompt = tokens(1, end)
    whole = Solo(model)
    whole.feed(prompt)
    expected = whole.image()
    for missing in (0, 1):
        begin = end - replay + missing
        solo = Solo(model)
        for page, payload in zip(solo.table(end), expected.blocks, strict=True):
            solo.runner._pool.import_block(page, payload)
        solo.num_tokens, solo.replay = begin, (begin, end)
        solo.feed(prompt[begin:], chunk=100)
        assert solo.image().blocks == expected.blocks
        assert (solo.image().state == expected.state) is (missing == 0)
    with pytest.raises(LayoutError, match=f"{replay - 1} tokens, exact windows need {replay}"):
        model.layout.check(without_state(expected, replay - 1))


@pytest.mark.medium
def test_entries_written_in_a_replay_would_be_noticed() -> None:
    model = load(HCA8)
    replay = model.layout.window_replay_tokens
    prompt = tokens(2, 96)
    whole = Solo(model)
    whole.feed(prompt)
    solo = Solo(model)
    solo.resume(without_state(whole.image(), replay))
    solo.replay = (solo.replay[0], 0)
    solo.feed(prompt[-replay:])
    assert solo.image().blocks != whole.image().blocks


@pytest.mark.medium
def test_replays_share_steps_and_memory_with_others_and_stay_exact() -> None:
    """Four prompts with one stored prefix, in memory for two: one is swapped out in its replay.

    What the engine exports, the rebuilt boundary states among it, is what it exported of each
    prompt computed whole.
    """
    model = load(HCA8)
    block, replay = model.layout.block_tokens, model.layout.window_replay_tokens
    shared = tokens(3, 4 * block)
    prompts = [[*shared, *tokens(10 + i, 20 + 17 * i)] for i in range(4)]

    def run(image: SequenceImage | None, pages: int) -> tuple[list[InMemoryExport], set[int]]:
        settings = EngineSettings(
            role=EngineRole.NORMAL,
            block_tokens=block,
            num_pages=pages,
            max_num_seqs=4,
            max_num_batched_tokens=24,
        )
        config = model.layout.config
        engine = LLMEngine(
            settings=settings,
            limits=ModelLimits(
                vocab_size=config.vocab_size, max_model_len=1024, eos_token_ids=(1,)
            ),
            cache=settings.cache_size(model.layout.block_bytes),
            runner=model.runner(num_pages=pages, num_slots=5),
        )
        exports = [InMemoryExport(block, state_every_blocks=1) for _ in prompts]
        for number, prompt in enumerate(prompts):
            engine.add(
                EngineRequest(
                    request_id=str(number),
                    token_ids=tuple(prompt),
                    sampling=SamplingParams(max_tokens=2, ignore_eos=True),
                    image=image,
                    export=exports[number],
                )
            )
        swapped_at: set[int] = set()
        for turn in range(200):
            # A replay that stands still gives way to the next prompt.
            engine.set_paused("1", 4 <= turn < 9)
            _, events = engine.step()
            assert not any(isinstance(event, RequestFailed) for event in events)
            engine.check_integrity()
            if not engine.has_work():
                return exports, swapped_at
            sequence = engine._requests.find("1")
            swapped = sequence.image if sequence else None
            if swapped is not None and swapped.state:
                swapped_at.add(swapped.state_tokens)
        raise AssertionError("the engine does not come to an end")

    whole, _ = run(None, pages=64)
    stored = SequenceImage(
        num_tokens=4 * block,
        blocks=tuple(whole[0].blocks[i] for i in range(4)),
        partial=b"",
        state=b"",
        replay_from=4 * block - replay,
    )
    replayed, swapped_at = run(stored, pages=14)
    assert [4 * block - replay < end < 4 * block for end in swapped_at] == [True]
    for one, other in zip(replayed, whole, strict=True):
        assert one.tail == other.tail
        assert one.states == {end: s for end, s in other.states.items() if end >= 4 * block}
        assert one.blocks == {idx: b for idx, b in other.blocks.items() if idx >= 4}
