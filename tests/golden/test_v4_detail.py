"""Every module of V4 against the values of an independent implementation, in one prefill.

The operations of the model are recorded while it computes one prompt; what they return is compared
with the golden detail tensors: coefficients, router choices, index scores, selections, streams.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine.build import kv_layout
from engine.handoff import SequenceImage
from engine.model.config import LayerKind
from engine.model.decoder import Decoder
from engine.parallel.ports import RankContext, open_ports
from tests.fakes.checkpoints import tensors_of
from tests.fakes.kernels import Recorder
from tests.fakes.models import GOLDEN, MAX_TOKENS, LoadedModel, Solo, golden, load
from tests.fakes.tensors import distance

pytestmark = pytest.mark.medium

CASES = [GOLDEN / "v4_base", GOLDEN / "v4_hca8", GOLDEN / "v4_quant"]
TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Run:
    """A recorded prefill."""

    model: LoadedModel
    recorder: Recorder
    golden: dict[str, torch.Tensor]
    rows: torch.Tensor
    tokens: list[int]
    image: SequenceImage

    def results(self, operation: str, place: int = 0) -> list[torch.Tensor]:
        """One result of every call, without padding rows."""
        return [found[: len(self.tokens)] for found in self.recorder.results(operation, place)]


@functools.cache
def run(directory: Path) -> Run:
    data = golden(directory)
    recorder = Recorder()
    layout = kv_layout(directory, kv_quantisers="off")
    config = layout.config
    ports = open_ports(
        RankContext(),
        hidden=config.hidden_size,
        top_k=config.num_experts_per_tok,
        max_tokens=MAX_TOKENS,
    )
    decoder = Decoder.load(directory, config, layout, ports.dispatcher, recorder.kernels)
    model = LoadedModel(directory=directory, layout=layout, decoder=decoder)
    name = data["detail"]["prompt"]
    tokens = next(p["input_ids"] for p in data["prompts"] if p["name"] == name)
    solo = Solo(model)
    solo.feed(tokens)
    assert data["state"]["prompt"] == name
    return Run(
        model=model,
        recorder=recorder,
        golden=load_file(directory / "golden.safetensors"),
        rows=torch.tensor(data["detail"]["rows"]),
        tokens=tokens,
        image=solo.image(),
    )


@pytest.fixture(params=CASES, ids=lambda directory: directory.name)
def recorded(request: Any) -> Run:
    found: Run = run(request.param)
    return found


def layers(recorded: Run) -> range:
    return range(recorded.model.layout.config.num_layers)


def test_hyper_connections(recorded: Run) -> None:
    posts, combs = recorded.results("hc_pre", 1), recorded.results("hc_pre", 2)
    collapsed = recorded.results("hc_mix")
    assert len(posts) == len(collapsed) == 2 * len(layers(recorded))
    compared = 0
    for layer in layers(recorded):
        for site, name in enumerate(("attn", "ffn")):
            prefix = f"detail.mhc.layer_{layer}.{name}"
            if f"{prefix}.post" not in recorded.golden:
                continue
            for part, found in (("post", posts), ("comb", combs), ("collapsed", collapsed)):
                rows = found[2 * layer + site].index_select(0, recorded.rows)
                assert distance(rows, recorded.golden[f"{prefix}.{part}"]) < TOLERANCE
                compared += 1
    assert compared == 18


def test_streams_after_every_layer(recorded: Run) -> None:
    streams = recorded.results("hc_post")
    assert len(streams) == 2 * len(layers(recorded))
    for layer in layers(recorded):
        rows = streams[2 * layer + 1].index_select(0, recorded.rows)
        assert distance(rows, recorded.golden[f"detail.hidden.layer_{layer}"]) < TOLERANCE


def test_router_choices(recorded: Run) -> None:
    ids, weights = recorded.results("route", 0), recorded.results("route", 1)
    assert len(ids) == len(layers(recorded))
    for layer in layers(recorded):
        prefix = f"detail.router.layer_{layer}"
        assert torch.equal(ids[layer], recorded.golden[f"{prefix}.indices"].long())
        assert distance(weights[layer], recorded.golden[f"{prefix}.weights"]) < TOLERANCE


def test_index_scores_and_selections(recorded: Run) -> None:
    scores, picks = recorded.results("index_logits"), recorded.results("select_topk")
    owners = [x.index for x in recorded.model.layout.config.layers if x.owns_index]
    assert len(scores) == len(picks) == len(owners) > 0
    visible = (torch.arange(len(recorded.tokens)) + 1) // 4
    for place, layer in enumerate(owners):
        expected = recorded.golden[f"detail.index_scores.layer_{layer}"]
        seen = torch.arange(expected.shape[1]) < visible[:, None]
        found = scores[place][:, : expected.shape[1]]
        assert distance(found[seen], expected[seen]) < TOLERANCE
        assert (found[~seen] == float("-inf")).all()
        wanted = recorded.golden[f"detail.topk.layer_{layer}"].long()
        sets = [sorted(set(row) - {-1}) for row in wanted.tolist()]
        assert [[i for i in row if i >= 0] for row in picks[place].tolist()] == sets


def test_final_hidden(recorded: Run) -> None:
    """The row behind the last token, after the final norm."""
    last = recorded.rows.tolist().index(len(recorded.tokens) - 1)
    found = recorded.recorder.results("rms_norm")[-1][0]
    assert distance(found, recorded.golden["detail.final_hidden"][last]) < TOLERANCE


def test_logits_of_every_row(recorded: Run) -> None:
    """Token by token, so that each row is asked for."""
    solo = Solo(load(recorded.model.directory))
    found = torch.stack([solo.feed([token]) for token in recorded.tokens])
    rows = found.index_select(0, recorded.rows)
    assert distance(rows, recorded.golden["detail.all_logits"]) < TOLERANCE


def entries_of(recorded: Run, layer: int, *, index: bool) -> torch.Tensor:
    """A layer's entries or index keys, read from the image's bytes."""
    layout = recorded.model.layout
    config, count = layout.config, len(recorded.tokens)
    part = next(part for part in layout.slices if part.layer == layer)
    width = config.index_head_dim if index else config.head_dim
    first = part.index_row if index else part.entry_row
    assert first is not None
    found = [
        torch.from_numpy(np.frombuffer(block, dtype=np.float32).copy()).view(-1, width)[
            first : first + part.entries
        ]
        for block in recorded.image.blocks
    ]
    flat = torch.from_numpy(np.frombuffer(recorded.image.partial, dtype=np.float32).copy())
    begin = 0
    # Canonical order: the entries of all layers, then the index keys of those that have some.
    for kind, owner in [(False, p) for p in layout.slices] + [
        (True, p) for p in layout.slices if p.index_row is not None
    ]:
        columns = config.index_head_dim if kind else config.head_dim
        size = layout.partial_entries(owner, count) * columns
        if kind is index and owner.layer == layer:
            found.append(flat[begin : begin + size].view(-1, columns))
        begin += size
    assert begin == flat.numel()
    return torch.cat(found)


def test_entries_and_index_keys_in_the_image(recorded: Run) -> None:
    for layer in recorded.model.layout.config.layers:
        if not layer.owns_kv:
            continue
        found = entries_of(recorded, layer.index, index=False)
        assert distance(found, recorded.golden[f"detail.entries.layer_{layer.index}"]) < TOLERANCE
        if layer.kind is LayerKind.CSA:
            found = entries_of(recorded, layer.index, index=True)
            expected = recorded.golden[f"detail.index_keys.layer_{layer.index}"]
            assert distance(found, expected) < TOLERANCE


def test_state_of_the_image(recorded: Run) -> None:
    """Windows, previous groups and open groups, in the order the layout names."""
    config, count = recorded.model.layout.config, len(recorded.tokens)
    stored = tensors_of(recorded.model.directory)
    flat = torch.from_numpy(np.frombuffer(recorded.image.state, dtype=np.float32).copy())
    place = 0

    def take(rows: int, columns: int) -> torch.Tensor:
        nonlocal place
        place += rows * columns
        return flat[place - rows * columns : place].view(rows, columns)

    for layer in layers(recorded):
        expected = recorded.golden[f"state.layer_{layer}.window"]
        assert len(expected) == min(count, config.sliding_window - 1)
        assert distance(take(*expected.shape), expected) < TOLERANCE
    for layer in config.layers:
        if not layer.owns_kv:
            continue
        parts = [("main", config.head_dim, f"layers.{layer.index}.attn.compressor")]
        if layer.kind is LayerKind.CSA:
            parts.append(
                ("indexer", config.index_head_dim, f"layers.{layer.index}.attn.indexer.compressor")
            )
        for name, width, prefix in parts:
            golden_name = f"state.layer_{layer.index}.{name}"
            if layer.kind is LayerKind.CSA:
                found = take(4, 2 * width)
                keys = recorded.golden[f"{golden_name}.previous_a_kv"]
                # The golden scores include the position bias; here it is added when a group closes.
                bias = stored[f"{prefix}.ape"][:, :width].float()
                scores = recorded.golden[f"{golden_name}.previous_a_score"] - bias
                assert distance(found, torch.cat([keys, scores], 1)) < TOLERANCE
            keys = recorded.golden[f"{golden_name}.open_kv"]
            scores = recorded.golden[f"{golden_name}.open_score_without_ape"]
            assert len(keys) == count % layer.ratio
            found = take(len(keys), 2 * keys.shape[1])
            assert distance(found, torch.cat([keys, scores], 1)) < TOLERANCE
    assert place == flat.numel()
