"""What holds for a model on ranks that share heads, rows and experts, whatever the rows."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import engine.model.decoder as decoder
import engine.parallel.rows.paths as paths
from engine.parallel.layout import TensorLayout
from engine.parallel.rows import TagError
from engine.parallel.rows.modes import Combine
from engine.parallel.rows.transitions import add_replicated, gather_partial, reduce_global
from tests.fakes.model_groups import GroupModel, RankResult
from tests.fakes.models import GOLDEN, Solo, load

HCA8 = GOLDEN / "v4_hca8"
LAYOUTS = {
    "b": TensorLayout(tp=4, dp=2, all_to_all=True),
    "b-4": TensorLayout(tp=4, all_to_all=True),
    "a": TensorLayout(tp=4, dp=2),
    "a-ep2": TensorLayout(tp=4, dp=2, ep=2),
    "a-1": TensorLayout(tp=2, dp=2, ep=2),
    "plain": TensorLayout(tp=4, ep=2),
}
STEPS = 5


def batches(seed: int, num_groups: int) -> list[list[list[int]]]:
    """Prompts of each group: uneven, and the last group may have none."""
    generator = np.random.default_rng(seed)
    counts = [int(generator.integers(1, 4))] + [
        int(generator.integers(0, 4)) for _ in range(num_groups - 1)
    ]
    return [
        [generator.integers(3, 256, generator.integers(1, 40)).tolist() for _ in range(count)]
        for count in counts
    ]


@functools.cache
def shared_runs(name: str, seed: int) -> tuple[list[list[list[int]]], list[RankResult]]:
    layout = LAYOUTS[name]
    prompts = batches(seed, layout.attn_dp)
    chunks = [17, 9][: layout.attn_dp]
    return prompts, GroupModel(HCA8, layout).run(prompts, STEPS, chunks=chunks)


def each_run(test: Callable[..., None]) -> Callable[..., None]:
    test = pytest.mark.parametrize("name", LAYOUTS)(test)
    return pytest.mark.medium(pytest.mark.parametrize("seed", [1, 2, 3])(test))


@each_run
def test_logits_are_those_of_one_rank(name: str, seed: int) -> None:
    prompts, results = shared_runs(name, seed)
    worst = 0.0
    for result in results:
        for prompt, tokens, logits in zip(
            prompts[result.part], result.tokens, result.logits, strict=True
        ):
            solo = Solo(load(HCA8))
            expected = [solo.feed(prompt), *(solo.feed([token]) for token in tokens[:-1])]
            worst = max(worst, float((logits - torch.stack(expected)).abs().max()))
    assert worst < 1e-4


@each_run
def test_ranks_that_share_heads_hold_equal_bits(name: str, seed: int) -> None:
    _, results = shared_runs(name, seed)
    for first, second in itertools.pairwise(results):
        if first.part == second.part:
            for ours, theirs in zip(first.logits, second.logits, strict=True):
                assert torch.equal(ours, theirs)


@each_run
def test_every_row_is_dispatched_and_counted_once(name: str, seed: int) -> None:
    _prompts, results = shared_runs(name, seed)
    rows = np.array([sum(counts) for counts in results[0].counts])
    config = load(HCA8).layout.config
    loads = [result.loads.sum(-1) for result in results]
    if LAYOUTS[name].all_to_all:
        sent = np.array([result.sent for result in results]).sum(0)
        assert (
            sent.reshape(-1, config.num_layers).tolist()
            == np.repeat(rows[:, None], config.num_layers, 1).tolist()
        )
        counted = sum(loads)
    else:
        # Every rank sees all rows and counts them: nothing is left to sum up.
        assert all(np.array_equal(found, loads[0]) for found in loads)
        counted = loads[0]
    expected = np.repeat(rows[:, None], config.num_layers, 1) * config.num_experts_per_tok
    assert counted.tolist() == expected.tolist()


@each_run
def test_members_of_a_group_make_equal_collectives(name: str, seed: int) -> None:
    layout = LAYOUTS[name]
    _, results = shared_runs(name, seed)
    for rank, result in enumerate(results):
        first = rank - rank % layout.attn_tp
        assert result.log["domain"] == results[0].log["domain"]
        assert result.log["attn_tp"] == results[first].log["attn_tp"]


@pytest.mark.medium
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_row_does_not_depend_on_its_neighbours(name: str) -> None:
    prompts, results = shared_runs(name, 1)
    layout = LAYOUTS[name]
    alone = [[prompts[0][0]], *([] for _ in range(layout.attn_dp - 1))]
    found = GroupModel(HCA8, layout).run(alone, STEPS, chunks=[7] * layout.attn_dp)
    assert torch.equal(found[0].logits[0], results[0].logits[0])


@pytest.mark.medium
@pytest.mark.parametrize("name", ["b", "a-ep2", "plain"])
def test_redundant_experts_change_no_token(name: str) -> None:
    prompts, results = shared_runs(name, 1)
    layout = LAYOUTS[name]
    found = GroupModel(HCA8, layout, min_redundant=5).run(
        prompts, STEPS, chunks=[17, 9][: layout.attn_dp]
    )
    assert [result.tokens for result in found] == [result.tokens for result in results]


# What would go wrong if a reduction were forgotten or taken twice: each is an error, not an answer.


def nothing(rows: Any, *_: Any) -> Any:
    return rows


def twice(move: Callable[..., Any]) -> Callable[..., Any]:
    return lambda rows, *more: move(move(rows, *more), *more)


def reduce_over_domain(rows: Any, *_: Any) -> Any:
    class Domain:
        name, rank, size = "domain", 0, 4

        def all_reduce(self, values: torch.Tensor) -> torch.Tensor:
            raise AssertionError("rows of other requests would be added up")

    return paths.reduce_own(rows, Domain())  # type: ignore[arg-type]


def gather_addends(rows: Any, attn_tp: Any, domain: Any, mode: Any) -> Any:
    return gather_partial(rows, attn_tp, domain)


def reduce_then_scatter(scatter: Callable[..., Any]) -> Callable[..., Any]:
    return lambda rows, attn_tp, domain, part: scatter(
        reduce_global(rows, domain), attn_tp, domain, part
    )


def add_before_scatter(scatter: Callable[..., Any]) -> Callable[..., Any]:
    def move(rows: Any, attn_tp: Any, domain: Any, part: int) -> Any:
        early = add_replicated(rows, torch.ones_like(rows.values), attn_tp, domain)
        return scatter(early, attn_tp, domain, part)

    return move


def join_by_sum(rows: Any, inner: Any) -> Any:
    return paths.reduce_own(rows, inner)


MISTAKES = {
    "attention not reduced": ("b", decoder, "reduce_own", nothing, "addends or other tokens"),
    "attention reduced twice": (
        "b",
        decoder,
        "reduce_own",
        twice(decoder.reduce_own),
        "multiplies",
    ),
    "attention reduced over the domain": (
        "a",
        decoder,
        "reduce_own",
        reduce_over_domain,
        "reduce_own over domain wants partial values, these are untagged",
    ),
    "partial gather on finished rows": (
        "a",
        paths,
        "gather_replicated",
        gather_addends,
        "gather_partial over attn_tp wants partial",
    ),
    "summed inside and scattered": (
        "a",
        paths,
        "scatter_global",
        reduce_then_scatter(paths.scatter_global),
        "scatter_global over domain wants partial",
    ),
    "own rows of addends": (
        "a",
        paths,
        "reduce_global",
        nothing,
        "take_own over domain wants replicated",
    ),
    "shared expert added on every rank": (
        "a",
        paths,
        "scatter_global",
        add_before_scatter(paths.scatter_global),
        "add_replicated over domain wants replicated",
    ),
    "chunks not joined": ("b", paths, "join", nothing, "residual stream"),
    "chunks joined twice": ("b", paths, "join", twice(paths.join), "join wants chunk rows"),
    "chunks summed": ("b", paths, "join", join_by_sum, "reduce_own wants own rows"),
    "rows not cut": ("b", paths, "cut", nothing, "join wants chunk rows"),
    "plain sum left out": ("plain", paths, "reduce_own", nothing, "over domain wants replicated"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_reduction_is_caught_by_the_tags(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, module, move, wrong, message = MISTAKES[mistake]
    layout = LAYOUTS[name]
    # Which of both ways a sum is taken depends on the rows; the mistake chooses it.
    sums = move == "reduce_global"
    combine = Combine.ALL_REDUCE if sums else Combine.REDUCE_SCATTER
    monkeypatch.setattr("engine.model.expert_rows.choose_combine", lambda *_, **__: combine)
    model = GroupModel(HCA8, layout)
    prompts = [[[5, 6, 7]] for _ in range(layout.attn_dp)]
    monkeypatch.setattr(module, move, wrong)
    with pytest.raises(TagError, match=message):
        model.run(prompts, 1, chunks=[8] * layout.attn_dp)
