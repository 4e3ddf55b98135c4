"""From a model directory to an engine: choices, defaults, the self-test that may refuse."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from disagg_kernels.reference import OPERATIONS
from engine.assembly import BuiltEngine
from engine.build import (
    build_engine,
    build_rank,
    default_block_tokens,
    kv_layout,
    quantisers_enabled,
)
from engine.config import EngineSettings, SettingsError
from engine.handoff import LayoutError
from engine.model.config import ModelConfig, ModelConfigError
from engine.model.weights import CheckpointError
from engine.parallel.layout import parse_layout
from engine.parallel.ports import RankContext, open_ports
from engine.request import EngineRequest, SamplingParams, TokenOut
from tests.fakes.checkpoints import config_of, tensors_of, write_checkpoint
from tests.fakes.kernels import kernels_with
from tests.fakes.models import GOLDEN, TINY, Solo, golden, load
from tests.fakes.released import V4_FLASH

BASE, HCA8, QUANT = GOLDEN / "v4_base", GOLDEN / "v4_hca8", GOLDEN / "v4_quant"


def settings(**changes: Any) -> EngineSettings:
    values = {"num_pages": 16, "max_num_seqs": 4, "max_num_batched_tokens": 64, **changes}
    return EngineSettings(**values)


@pytest.mark.parametrize(
    ("directory", "choice", "expected"),
    [
        (QUANT, "auto", True),
        (QUANT, "on", True),
        (QUANT, "off", False),
        (BASE, "auto", False),
        (BASE, "on", True),
        (BASE, "off", False),
    ],
)
def test_auto_follows_the_checkpoint(directory: Path, choice: str, expected: bool) -> None:
    assert quantisers_enabled(ModelConfig.load(directory), choice) is expected
    assert kv_layout(directory, kv_quantisers=choice).quantisers is expected


@pytest.mark.parametrize("choice", ["", "On", "true", "fp8"])
def test_an_unknown_choice_is_refused(choice: str) -> None:
    with pytest.raises(SettingsError) as caught:
        kv_layout(BASE, kv_quantisers=choice)
    assert str(caught.value) == f"model.kv_quantisers is {choice!r}: use one of auto, on, off"
    with pytest.raises(SettingsError):
        build_engine(BASE, settings(), kv_quantisers=choice)


def test_block_tokens_by_default() -> None:
    assert default_block_tokens(V4_FLASH) == 128
    assert default_block_tokens(ModelConfig.load(TINY)) == 32
    assert default_block_tokens(ModelConfig.load(HCA8)) == 32
    # A test model whose groups are longer than the short default gets its own smallest cut.
    assert default_block_tokens(ModelConfig.load(BASE)) == 128


def test_block_tokens_that_do_not_divide_are_refused() -> None:
    assert kv_layout(TINY, block_tokens=64).block_tokens == 64
    with pytest.raises(LayoutError):
        kv_layout(TINY, block_tokens=48)
    with pytest.raises(LayoutError):
        build_engine(TINY, settings(block_tokens=48))


def test_directories_that_are_no_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError):
        build_engine(tmp_path, settings())
    directory = write_checkpoint(tmp_path / "model", tensors_of(BASE), config_of(BASE))
    (directory / "model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        build_engine(directory, settings(block_tokens=128, batch_invariant=False))


def generate(built: Any, prompt: list[int], count: int) -> list[int]:
    built.engine.add(
        EngineRequest(
            request_id="r",
            token_ids=tuple(prompt),
            sampling=SamplingParams(max_tokens=count, ignore_eos=True),
        )
    )
    tokens: list[int] = []
    for _ in range(500):
        _, events = built.engine.step()
        tokens += [event.token_id for event in events if isinstance(event, TokenOut)]
        if not built.engine.has_work():
            return tokens
    raise AssertionError("the request did not end")


@pytest.mark.medium
@pytest.mark.parametrize("batch_invariant", [True, False])
def test_an_engine_gives_the_golden_tokens(batch_invariant: bool) -> None:
    built = build_engine(
        HCA8,
        settings(batch_invariant=batch_invariant, max_num_batched_tokens=23),
        kv_quantisers="off",
    )
    case = next(p for p in golden(HCA8)["prompts"] if p["name"] == "len_064")
    assert generate(built, case["input_ids"], len(case["greedy"])) == case["greedy"]
    assert built.config == built.layout.config
    assert built.layout.block_tokens == 32
    built.ports.close()


@pytest.mark.medium
def test_a_given_layout_decides_on_the_block_size() -> None:
    layout = kv_layout(TINY, block_tokens=64)
    with pytest.raises(SettingsError, match=r"block_tokens is 32, but the KV layout has 64"):
        build_engine(TINY, settings(block_tokens=32), layout=layout)
    built = build_engine(TINY, settings(), layout=layout)
    assert built.layout is layout
    assert len(generate(built, [5] * 100, 3)) == 3
    built.ports.close()


@pytest.mark.medium
def test_rows_to_experts_are_rounded_only_when_asked_for() -> None:
    layout = kv_layout(TINY, dispatch_format="fp8_bf16")
    built = build_engine(TINY, settings(), layout=layout)
    case = golden(TINY)["cases"][0]
    assert len(generate(built, case["input_ids"], 3)) == 3
    assert built.layout.fingerprint != kv_layout(TINY).fingerprint
    built.ports.close()


@pytest.mark.parametrize(
    ("form", "run", "message"),
    [
        ("fp16", "dp=1", "engine.dispatch_format is 'fp16': use one of float32, fp8, fp8_bf16"),
        ("fp8", "dp=2,path=a", "is fp8, but layout dp=2,ep=2,path=a dispatches nothing"),
    ],
)
def test_formats_that_cannot_be_are_refused(form: str, run: str, message: str) -> None:
    layout = kv_layout(TINY, dispatch_format=form)
    with pytest.raises(SettingsError, match=message):
        build_rank(TINY, settings(batch_invariant=False), layout=layout, run=parse_layout(run))


def depends_on_rows(name: str) -> Callable[..., Any]:
    """An operation whose results move a little with the number of rows of its first argument."""

    def run(*arguments: Any) -> Any:
        return OPERATIONS[name](*arguments) + 1e-6 * arguments[0].shape[0]

    return run


@pytest.mark.medium
@pytest.mark.parametrize(
    ("operation", "named"),
    [
        ("linear", "linear 128 x"),
        ("hc_post", "hyper-connections"),
        ("sparse_attention", "attention over"),
        ("index_logits", "index scores"),
    ],
)
def test_a_machine_whose_rows_depend_on_neighbours_is_refused(
    monkeypatch: pytest.MonkeyPatch, operation: str, named: str
) -> None:
    def index_scores(query: Any, weight: Any, keys: Any, *rest: Any) -> Any:
        return OPERATIONS["index_logits"](query, weight, keys, *rest) + 1e-6 * keys.shape[1]

    broken = index_scores if operation == "index_logits" else depends_on_rows(operation)
    monkeypatch.setattr(
        "engine.build.select_kernels", lambda device, **_: kernels_with(**{operation: broken})
    )
    with pytest.raises(SettingsError) as caught:
        build_engine(TINY, settings())
    message = str(caught.value)
    assert message.startswith("engine.batch_invariant is on, but on this machine rows depend")
    assert named in message
    assert "Set engine.batch_invariant to false and accept" in message
    # Whoever accepts it gets an engine.
    built = build_engine(TINY, dataclasses.replace(settings(), batch_invariant=False))
    built.ports.close()


def test_a_rank_that_cannot_load_lets_go_of_its_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def open_recorded(*arguments: Any, **sizes: Any) -> Any:
        return dataclasses.replace(
            open_ports(*arguments, **sizes),
            abort=lambda: done.append("abort"),
            close=lambda: done.append("close"),
        )

    monkeypatch.setattr("engine.build.open_ports", open_recorded)
    tensors = tensors_of(HCA8)
    del tensors["norm.weight"]
    directory = write_checkpoint(tmp_path / "model", tensors, config_of(HCA8))
    with pytest.raises(CheckpointError):
        build_engine(directory, settings(batch_invariant=False))
    assert done == ["abort", "close"]


@pytest.mark.medium
@pytest.mark.parametrize("directory", [QUANT, HCA8], ids=lambda path: path.name)
def test_quantisers_act_and_tokens_do_not_depend_on_chunks(directory: Path) -> None:
    model = load(directory, "on")
    prompt = golden(directory)["prompts"][-1]["input_ids"]
    whole, cut, plain = Solo(model), Solo(model), Solo(load(directory, "off"))
    logits = whole.feed(prompt)
    assert torch.equal(cut.feed(prompt, chunk=7), logits)
    assert not torch.equal(plain.feed(prompt), logits)
    tokens = [int(logits.argmax())]
    for _ in range(8):
        logits = whole.feed(tokens[-1:])
        assert torch.equal(cut.feed(tokens[-1:]), logits)
        tokens.append(int(logits.argmax()))
    assert cut.image() == whole.image()
    assert load(directory, "on").layout.fingerprint != load(directory, "off").layout.fingerprint


def test_a_layout_the_model_cannot_have_is_refused_before_it_is_loaded() -> None:
    with pytest.raises(ValueError, match="HEADS: attn_tp 16 does not divide both"):
        build_rank(TINY, settings(), run=parse_layout("attn_tp=16"))


def test_a_rank_alone_leads_itself() -> None:
    built = build_rank(TINY, settings(batch_invariant=False), run=parse_layout("dp=1"))
    assert isinstance(built, BuiltEngine)
    assert built.leading is None
    built.close()
    built.close()


def test_layouts_of_more_ranks_than_were_started_are_refused() -> None:
    with pytest.raises(ValueError, match="has 2 ranks, but 1 were started"):
        build_rank(
            TINY,
            settings(batch_invariant=False),
            context=RankContext(backend="shm"),
            run=parse_layout("cp=2"),
        )
