"""Step times: monotone, lockstep, bounded by each roof."""

from __future__ import annotations

import pytest

from engine.model.sizing.catalog import read_config
from engine.model.sizing.sizes import ModelSizes
from simulator.hardware.cost import Chunk, CostModel
from simulator.hardware.profiles import ProfileError, read_hardware
from simulator.work.families import read_work


def cost(
    model: str = "v4.1-flash", hardware: str = "h800", ep: int = 8, tp: int = 1, skew: float = 1.0
) -> CostModel:
    raw = read_config(model)
    return CostModel(
        hardware=read_hardware(hardware),
        sizes=ModelSizes.from_config(raw),
        work=read_work(raw),
        ep=ep,
        attn_tp=tp,
        expert_skew=skew,
    )


PREFILL, DECODE = cost(), cost(ep=64)


def whole(tokens: int) -> list[Chunk]:
    return [Chunk(q=tokens, k=tokens, prompt=tokens)]


def test_a_step_is_as_slow_as_its_slowest_rank() -> None:
    long = PREFILL.prefill_step_s([whole(8192)] * 8)
    uneven = PREFILL.prefill_step_s([whole(8192)] + [whole(64)] * 7)
    alone = PREFILL.prefill_step_s([whole(8192)])
    # Idle peers lend their experts, so the step is shorter, but attention stays with its rank.
    assert 0.5 * long < alone < uneven < long


def test_long_chunks_are_bound_by_arithmetic() -> None:
    work = PREFILL.work.prefill(8192, 8192, prompt=8192).total
    floor = work / PREFILL.hardware.flops_per_s
    assert PREFILL.prefill_step_s([whole(8192)] * 8) == pytest.approx(floor, rel=0.02)


def test_short_chunks_are_bound_by_weights() -> None:
    step = PREFILL.prefill_step_s([whole(64)] * 8)
    # All slots of a rank: a little below 1/8 of 72 layers' experts, and everything else.
    assert step > 0.015
    assert PREFILL.prefill_step_s([whole(32)] * 8) == pytest.approx(step, rel=0.05)


def test_the_parts_of_a_prompt_take_as_long_as_the_whole_in_equal_chunks() -> None:
    whole_s = PREFILL.full_prefill_s(16384, 0, 8192)
    parts = [Chunk(q=8192, k=8192, prompt=16384), Chunk(q=8192, k=16384, prompt=16384)]
    assert whole_s == pytest.approx(sum(PREFILL.prefill_step_s([[part]] * 8) for part in parts))
    assert PREFILL.full_prefill_s(100, 8000, 8192) < PREFILL.full_prefill_s(8100, 0, 8192)
    assert PREFILL.full_prefill_s(0, 8000, 8192) == 0.0


@pytest.mark.parametrize("rows", [0, 1, 8, 64, 256])
def test_decode_steps_grow_with_rows_and_with_reads(rows: int) -> None:
    step = DECODE.decode_step_s(rows, rows * 10e6, 64 * rows)
    assert DECODE.decode_step_s(rows + 1, (rows + 1) * 10e6, 64 * rows + 1) >= step
    assert DECODE.decode_step_s(rows, 1e12, 64 * rows) > step


def test_few_rows_hit_few_experts() -> None:
    assert DECODE.decode_step_s(0, 0.0, 1) < DECODE.decode_step_s(0, 0.0, 1000)


def test_a_loaded_expert_rank_slows_all() -> None:
    assert cost(skew=1.5).prefill_step_s([whole(8192)] * 8) > PREFILL.prefill_step_s(
        [whole(8192)] * 8
    )


def test_attention_tp_divides_work_and_pays_for_all_reduces() -> None:
    eight = cost("llama3-70b", "a800", ep=1, tp=8)
    work = eight.work.prefill(8192, 8192, prompt=8192).total
    floor = work / (8 * eight.hardware.flops_per_s)
    assert eight.prefill_step_s([whole(8192)]) > 1.05 * floor
    assert eight.nic_bytes_per_s == 8 * eight.hardware.nic_bytes_per_s


@pytest.mark.parametrize(
    ("model", "ep", "tp", "message"),
    [
        ("v4.1-flash", 1, 1, r"do not fit in 72.0 GB; raise ranks \(ep\) or attn_tp in a topo"),
        ("v4.1-flash", 8, 2, "leave one of them at 1"),
        ("llama3-70b", 1, 1, "GB; raise attn_tp in a topology file"),
        ("llama3-70b", 8, 1, "no routed experts"),
    ],
)
def test_groups_that_cannot_be(model: str, ep: int, tp: int, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        cost(model, ep=ep, tp=tp)


def test_a_handoff_carries_kv_and_state() -> None:
    sizes = DECODE.sizes
    assert DECODE.handoff_bytes(1000) == 890 * 1000 + sizes.state_bytes_per_sequence
    assert DECODE.max_running(100_000) < DECODE.max_running(1_000)
