"""The V4 model against values from an independent implementation (transformers, float32).

Tokens must be equal; logits and hidden values keep to the tolerance the golden files state.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.fakes.models import GOLDEN, TINY, Solo, golden, load

CASES = [GOLDEN / "v4_base", GOLDEN / "v4_hca8", GOLDEN / "v4_quant"]


def _name(directory: Path) -> str:
    return directory.name


@pytest.mark.medium
@pytest.mark.parametrize("chunk", [2048, 7])
@pytest.mark.parametrize("directory", CASES, ids=_name)
def test_tokens_and_last_logits(directory: Path, chunk: int) -> None:
    model = load(directory)
    data = golden(directory)
    tensors = load_file(directory / "golden.safetensors")
    tolerance = data["tolerance"]["logits_abs"]
    for prompt in data["prompts"]:
        solo = Solo(model)
        logits = solo.feed(prompt["input_ids"], chunk=chunk)
        expected = tensors[f"last_logits.{prompt['name']}"].flatten()
        assert (logits - expected).abs().max() < tolerance, prompt["name"]
        tokens = [int(logits.argmax())]
        while len(tokens) < len(prompt["greedy"]):
            tokens.append(int(solo.feed(tokens[-1:]).argmax()))
        assert tokens == prompt["greedy"], prompt["name"]


@pytest.mark.medium
@pytest.mark.parametrize("directory", CASES, ids=_name)
def test_logits_of_every_decode_step(directory: Path) -> None:
    model = load(directory)
    data = golden(directory)
    tensors = load_file(directory / "golden.safetensors")
    names = [p for p in data["prompts"] if f"step_logits.{p['name']}" in tensors]
    assert names
    for prompt in names:
        solo = Solo(model)
        rows = [solo.feed(prompt["input_ids"])]
        rows += [solo.feed([token]) for token in prompt["greedy"][:-1]]
        expected = tensors[f"step_logits.{prompt['name']}"]
        difference = (torch.stack(rows)[: expected.shape[0]] - expected).abs().max()
        assert difference < data["tolerance"]["logits_abs"]


@pytest.mark.medium
@pytest.mark.parametrize("directory", CASES, ids=_name)
def test_state_after_a_prefill(directory: Path) -> None:
    """Entries, index keys and windows in the pool are those of the independent implementation."""
    model = load(directory)
    data = golden(directory)
    tensors = load_file(directory / "golden.safetensors")
    name = data["state"]["prompt"]
    prompt = next(p for p in data["prompts"] if p["name"] == name)
    solo = Solo(model)
    solo.feed(prompt["input_ids"])
    pool = solo.runner._pool
    count = len(prompt["input_ids"])
    compared = 0
    for layer in range(model.layout.config.num_layers):
        expected = tensors[f"state.layer_{layer}.window"]
        kept = expected.shape[0]
        rows = torch.arange(count - kept, count) % pool.window
        base = pool.windows_at + pool.slot_rows + layer * pool.window
        torch.testing.assert_close(pool.rows[base + rows], expected, atol=1e-3, rtol=0)
        compared += 1
    pages = solo.table(count)
    for part in model.layout.slices:
        rows = torch.cat(
            [
                torch.arange(part.entries)
                + (pool.pages_at + page * model.layout.entry_rows + part.entry_row)
                for page in pages
            ]
        )[: count // part.ratio]
        expected = tensors[f"state.layer_{part.layer}.main.entries"]
        torch.testing.assert_close(pool.rows[rows], expected, atol=1e-3, rtol=0)
        compared += 1
        if part.index_row is None:
            continue
        rows = torch.cat(
            [
                torch.arange(part.entries)
                + (pool.index_pages_at + page * model.layout.index_rows + part.index_row)
                for page in pages
            ]
        )[: count // part.ratio]
        expected = tensors[f"state.layer_{part.layer}.indexer.entries"]
        torch.testing.assert_close(pool.index_rows[rows], expected, atol=1e-3, rtol=0)
        compared += 1
    assert compared > model.layout.config.num_layers


@pytest.mark.medium
def test_tiny_v4_tokens_and_first_logits() -> None:
    model = load(TINY)
    data = golden(TINY)
    for case in data["cases"]:
        solo = Solo(model)
        logits = solo.feed(case["input_ids"])
        for token, value in case["first_step_top5"]:
            assert abs(float(logits[token]) - value) < 1e-3
        tokens = [int(logits.argmax())]
        while len(tokens) < data["steps"]:
            tokens.append(int(solo.feed(tokens[-1:]).argmax()))
        assert tokens == case["greedy_ids"], case["name"]
