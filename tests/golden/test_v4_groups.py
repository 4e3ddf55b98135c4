"""The whole model on ranks that share heads, rows and experts: golden tokens on every path."""

from pathlib import Path

import pytest

from engine.parallel.layout import TensorLayout
from tests.fakes.model_groups import GroupModel, RankResult
from tests.fakes.models import GOLDEN, TINY, golden

BASE, HCA8, QUANT = GOLDEN / "v4_base", GOLDEN / "v4_hca8", GOLDEN / "v4_quant"

LAYOUTS = {
    "b-2": TensorLayout(tp=2, all_to_all=True),
    "b-2x2": TensorLayout(tp=4, dp=2, all_to_all=True),
    "b-4": TensorLayout(tp=4, all_to_all=True),
    "a-2x1": TensorLayout(tp=2, dp=2),
    "a-2x1-ep": TensorLayout(tp=2, dp=2, ep=2),
    "a-2x2": TensorLayout(tp=4, dp=2),
    "a-2x2-ep2": TensorLayout(tp=4, dp=2, ep=2),
    "a-2x2-ep4": TensorLayout(tp=4, dp=2, ep=4),
    "plain-2": TensorLayout(tp=2),
    "plain-4-ep2": TensorLayout(tp=4, ep=2),
}
# Four ranks to a group need as many output groups.
NARROW = [name for name in LAYOUTS if "-4" not in name]


def cases(directory: Path, count: int) -> list[tuple[list[int], list[int]]]:
    """Prompts with their golden continuations, short ones first."""
    found = golden(directory)
    if "cases" in found:
        pairs = [(c["input_ids"], c["greedy_ids"]) for c in found["cases"]]
    else:
        pairs = [(p["input_ids"], p["greedy"]) for p in found["prompts"]]
    return sorted(pairs, key=lambda pair: len(pair[0]))[:count]


def check(directory: Path, name: str, *, count: int, steps: int) -> list[RankResult]:
    layout = LAYOUTS[name]
    pairs = cases(directory, count)
    # Groups get 1 prompt more or fewer and chunks of different sizes: counts are uneven.
    shares = [pairs[part :: layout.attn_dp] for part in range(layout.attn_dp)]
    results = GroupModel(directory, layout).run(
        [[prompt for prompt, _ in share] for share in shares],
        steps,
        chunks=[48, 13][: layout.attn_dp],
    )
    for result in results:
        for found, (_, expected) in zip(result.tokens, shares[result.part], strict=True):
            assert found == expected[:steps]
    return results


@pytest.mark.medium
@pytest.mark.parametrize("name", LAYOUTS)
def test_tokens_are_the_golden_ones(name: str) -> None:
    results = check(BASE, name, count=9, steps=8)
    for result in results:
        assert len(set(result.counts[0])) == len(result.counts[0]), "counts are uneven"


@pytest.mark.medium
@pytest.mark.parametrize("name", NARROW)
def test_tokens_of_the_bundled_model_are_the_golden_ones(name: str) -> None:
    results = check(TINY, name, count=7, steps=16)
    if LAYOUTS[name].attn_dp > 1:
        assert any(0 in counts for counts in results[0].counts), "one group had no rows"


@pytest.mark.medium
@pytest.mark.parametrize("name", ["b-2x2", "a-2x2-ep2", "plain-2"])
@pytest.mark.parametrize("model", [HCA8, QUANT], ids=["hca8", "quant"])
def test_tokens_of_the_other_models_are_the_golden_ones(model: Path, name: str) -> None:
    check(model, name, count=9, steps=8)
