"""A sequence goes on elsewhere as if it had never moved, whatever its length, bit by bit."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model_runner import ModelRunner
from engine.plan import SequenceStep, StepKind, StepPlan
from tests.fakes.models import GOLDEN, LoadedModel, Solo, load
from tests.fakes.tensors import normal

BASE, HCA8, QUANT = GOLDEN / "v4_base", GOLDEN / "v4_hca8", GOLDEN / "v4_quant"
# Around groups of 4, 8 and 128, windows of 16 and 128, blocks of 32 and 128.
BORDERS = [
    border + shift
    for border in (4, 8, 16, 32, 64, 128, 256)
    for shift in (-1, 0, 1, 2, 3)
    if border + shift > 0
]


def tokens(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 256, (count,), generator=generator).tolist()


def dirty_runner(model: LoadedModel) -> ModelRunner:
    """A runner whose memory is full of what others left; the zero rows stay zero."""
    runner = model.runner(num_pages=32, num_slots=4)
    pool = runner._pool
    pool.rows[pool.pages_at :] = normal(*pool.rows[pool.pages_at :].shape) * 10.0
    for ring in [*pool.rings.values(), *pool.index_rings.values()]:
        ring.copy_(normal(*ring.shape) * 10.0)
    return runner


@pytest.mark.medium
@settings(max_examples=25)
@given(
    case=st.sampled_from(((BASE, "off"), (HCA8, "off"), (HCA8, "on"), (QUANT, "on"))),
    count=st.sampled_from(BORDERS) | st.integers(1, 300),
    more=st.integers(1, 9),
    chunk=st.sampled_from((3, 17, 64, 2048)),
    first_page=st.integers(1, 20),
    slot=st.integers(1, 3),
    seed=st.integers(0, 3),
)
def test_a_moved_sequence_goes_on_with_the_same_bits(
    case: tuple[Path, str],
    count: int,
    more: int,
    chunk: int,
    first_page: int,
    slot: int,
    seed: int,
) -> None:
    model = load(*case)
    prompt, rest = tokens(seed, count), tokens(seed + 100, more)
    here = Solo(model)
    here.feed(prompt, chunk=chunk)
    image = here.image()
    there = dirty_runner(model)
    pages = -(-(count + more) // model.layout.block_tokens)
    table = tuple(range(first_page + pages - 1, first_page - 1, -1))
    there.import_image(image, table, slot)
    assert there.export_image(table, slot, count) == image
    for number, token in enumerate(rest):
        step = SequenceStep(
            request_id="moved",
            token_ids=(token,),
            start=count + number,
            block_table=table,
            state_slot=slot,
            sample=True,
        )
        plan = StepPlan(kind=StepKind.DECODE, step=0, sequences=(step,), is_placeholder=False)
        assert torch.equal(there.run(plan).logits[0], here.feed([token])), (count, number)
    assert there.export_image(table, slot, count + more) == here.image()


@pytest.mark.medium
@settings(max_examples=8)
@given(
    case=st.sampled_from(((BASE, "off"), (HCA8, "off"), (HCA8, "on"), (QUANT, "on"))),
    count=st.sampled_from(BORDERS) | st.integers(1, 300),
    chunk=st.sampled_from((1, 2, 5, 16, 31, 100)),
    seed=st.integers(0, 3),
)
def test_an_image_does_not_tell_how_the_prompt_was_cut(
    case: tuple[Path, str], count: int, chunk: int, seed: int
) -> None:
    model = load(*case)
    whole, cut = Solo(model), Solo(model)
    logits = whole.feed(tokens(seed, count))
    assert torch.equal(cut.feed(tokens(seed, count), chunk=chunk), logits)
    assert cut.image() == whole.image()
