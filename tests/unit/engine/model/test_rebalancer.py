"""Moving experts in a group of one: when, by which loads, and that no token changes."""

import pytest

from disagg_kernels import select_kernels
from engine.build import kv_layout
from engine.model.decoder import Decoder
from engine.model.experts import ExpertPlacement
from engine.model.rebalancer import ExpertRebalancer
from engine.parallel.dispatch import DispatchShape, LocalDispatcher
from engine.parallel.experts import LoadWindow
from engine.parallel.layout import ExpertSlots
from tests.fakes.models import GOLDEN, LoadedModel, Solo, golden

MODEL = GOLDEN / "v4_base"


def build(interval_steps: int) -> tuple[LoadedModel, ExpertRebalancer, LoadWindow]:
    layout = kv_layout(MODEL)
    config = layout.config
    shape = DispatchShape(
        hidden=config.hidden_size, top_k=config.num_experts_per_tok, max_tokens=2048
    )
    dispatcher = LocalDispatcher(shape)
    slots = ExpertSlots(num_logical=config.n_routed_experts, ep=1, min_redundant=3)
    loads = LoadWindow(config.num_layers, slots.num_logical)
    decoder = Decoder.load(
        MODEL,
        config,
        layout,
        dispatcher,
        select_kernels("cpu"),
        placement=ExpertPlacement(num_logical=slots.num_logical, num_ranks=1, min_redundant=3),
        loads=loads,
    )
    rebalancer = ExpertRebalancer(
        decoder, loads, slots, dispatcher, shape, interval_steps=interval_steps
    )
    return LoadedModel(directory=MODEL, layout=layout, decoder=decoder), rebalancer, loads


def test_tokens_stay_while_experts_move() -> None:
    model, rebalancer, loads = build(interval_steps=4)
    prompt = golden(MODEL)["prompts"][0]
    solo = Solo(model)
    tokens: list[int] = []
    initial = rebalancer.placements[0]
    for step in range(1, 11):
        rebalancer.before_step()
        logits = solo.feed(tokens[-1:] or prompt["input_ids"])
        tokens.append(int(logits.argmax()))
        assert rebalancer.moves.moves == step // 4
    assert tokens == prompt["greedy"][:10]
    assert any(placement != initial for placement in rebalancer.placements)
    assert rebalancer.moves.steps_since == 2
    # The last map is the second; what changed is counted over both moves.
    assert rebalancer.moves.changed_slots >= sum(
        int((placement.physical_to_logical != initial.physical_to_logical).sum())
        for placement in rebalancer.placements
    )
    # Every row of every layer was counted, top_k choices each.
    counts = loads.counts()
    rows = [len(prompt["input_ids"])] + [1] * 9
    config = model.layout.config
    assert counts.sum(-1).tolist() == [
        [count * config.num_experts_per_tok] * config.num_layers for count in rows
    ]


def test_the_most_loaded_experts_get_the_replicas() -> None:
    model, rebalancer, loads = build(interval_steps=2)
    solo = Solo(model)
    rebalancer.before_step()
    solo.feed(golden(MODEL)["prompts"][0]["input_ids"])
    counted = loads.counts()[0]
    rebalancer.before_step()
    for layer, placement in enumerate(rebalancer.placements):
        assert placement.counts[counted[layer].argmax()] > 1
        assert placement.counts.sum() == placement.num_physical == 11


def test_never_is_said_by_leaving_it_out() -> None:
    with pytest.raises(ValueError, match="interval_steps is 0: give at least 1"):
        build(interval_steps=0)
