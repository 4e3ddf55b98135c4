"""The whole model: logits against the formulas, and the tensors that released models consist of."""

import math
import re
from functools import cache
from pathlib import Path

import pytest
import torch

from disagg_kernels import select_kernels
from engine.handoff import KvLayout
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder, ModelParts
from engine.model.experts import ExpertPlacement
from engine.model.weights import WHOLE, Share, Weights
from engine.parallel.ports import RankContext, open_ports
from tests.fakes.models import GOLDEN, TINY, Solo, load
from tests.fakes.naive_v4 import NaiveV4
from tests.fakes.released import V4_FLASH, V4_PRO
from tests.fakes.tensors import distance
from tests.fakes.vectors import vectors


@pytest.mark.medium
@pytest.mark.parametrize(
    ("directory", "count"), [(TINY, 70), (GOLDEN / "v4_base", 135)], ids=["tiny", "base"]
)
def test_logits_are_the_formulas(directory: Path, count: int) -> None:
    naive = NaiveV4(directory)
    generator = torch.Generator().manual_seed(count)
    tokens = torch.randint(3, naive.config["vocab_size"], (count,), generator=generator).tolist()
    expected = naive.logits(tokens)
    solo = Solo(load(directory))
    for end in (1, 2, 5, 33, 64, 65, count - 1, count):
        assert distance(solo.feed(tokens[solo.num_tokens : end]), expected[end - 1]) < 1e-3


class Outline(Weights):
    """Hands out tensors without memory and keeps their shapes."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.shapes: dict[str, tuple[int, ...]] = {}

    def has(self, name: str) -> bool:
        return False

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        assert name not in self.shapes, f"{name} is asked for twice"
        self.shapes[name] = shape
        return torch.empty(shape)

    def integers(self, name: str, shape: tuple[int, ...], limit: int) -> torch.Tensor:
        return self.tensor(name, shape).to(torch.int64)

    def experts(
        self, prefix: str, logical_ids: list[int], inner: Share = WHOLE
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Asks for one expert; the others are alike."""
        first, *others = logical_ids
        gate_up, down = super().experts(prefix, [first], inner)
        for part in ("w1", "w2", "w3"):
            shape = self.shapes[f"{prefix}.{first}.{part}.weight"]
            self.shapes |= {f"{prefix}.{other}.{part}.weight": shape for other in others}
        count = len(logical_ids)
        return gate_up.expand(count, -1, -1), down.expand(count, -1, -1)

    def check_all_used(self, *, all_experts: bool) -> None:
        assert all_experts


@cache
def outline(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor the engine asks a checkpoint of this model for."""
    weights = Outline(config)
    ports = open_ports(
        RankContext(), hidden=config.hidden_size, top_k=config.num_experts_per_tok, max_tokens=8
    )
    with torch.device("meta"):
        Decoder(
            ModelParts(
                weights=weights,
                config=config,
                layout=KvLayout(config, block_tokens=128, quantisers=True, weights_revision=""),
                placement=ExpertPlacement(num_logical=config.n_routed_experts, num_ranks=1),
                dispatcher=ports.dispatcher,
                ops=select_kernels("cpu"),
                quantisers=True,
                min_expert_rows=4,
            )
        )
    return weights.shapes


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "config"), [("v4-flash", V4_FLASH), ("v4-pro", V4_PRO)], ids=["flash", "pro"]
)
def test_a_released_model_has_the_parameters_it_should(name: str, config: ModelConfig) -> None:
    """Tables of integers are not parameters."""
    shapes = outline(config)
    total = sum(math.prod(shape) for name, shape in shapes.items() if not name.endswith("tid2eid"))
    assert total == vectors("parameters")[name]["expected"]["total"]


RELEASED_NAMES = (
    r"(embed|norm|head)\.weight",
    r"hc_head_(fn|base|scale)",
    r"layers\.\d+\.(attn_norm|ffn_norm)\.weight",
    r"layers\.\d+\.hc_(attn|ffn)_(fn|base|scale)",
    r"layers\.\d+\.attn\.(wq_a|wq_b|wkv|wo_a|wo_b|q_norm|kv_norm)\.weight",
    r"layers\.\d+\.attn\.attn_sink",
    r"layers\.\d+\.attn\.(indexer\.)?compressor\.((wkv|wgate|norm)\.weight|ape)",
    r"layers\.\d+\.attn\.indexer\.(wq_b|weights_proj)\.weight",
    r"layers\.\d+\.ffn\.gate\.(weight|bias|tid2eid)",
    r"layers\.\d+\.ffn\.(experts\.\d+|shared_experts)\.w[123]\.weight",
)


@pytest.mark.medium
def test_the_tensors_of_a_released_model() -> None:
    shapes = outline(V4_FLASH)
    unknown = [
        name for name in shapes if not any(re.fullmatch(form, name) for form in RELEASED_NAMES)
    ]
    assert unknown == []
    expected = {
        "layers.0.attn.wq_a.weight": (1024, 4096),
        "layers.0.attn.wq_b.weight": (64 * 512, 1024),
        "layers.0.attn.wkv.weight": (512, 4096),
        "layers.0.attn.wo_a.weight": (8 * 1024, 4096),
        "layers.0.attn.wo_b.weight": (4096, 8 * 1024),
        "layers.2.attn.compressor.wkv.weight": (1024, 4096),
        "layers.2.attn.compressor.ape": (4, 1024),
        "layers.2.attn.indexer.compressor.wgate.weight": (256, 4096),
        "layers.2.attn.indexer.wq_b.weight": (64 * 128, 1024),
        "layers.2.attn.indexer.weights_proj.weight": (64, 4096),
        "layers.3.attn.compressor.ape": (128, 512),
        "layers.3.ffn.gate.bias": (256,),
        "layers.0.ffn.gate.tid2eid": (129280, 6),
        "layers.0.hc_attn_fn": (24, 4 * 4096),
        "hc_head_fn": (4, 4 * 4096),
    }
    assert {name: shapes.get(name) for name in expected} == expected
    hashed = [name for name in shapes if name.endswith("tid2eid")]
    assert hashed == [f"layers.{i}.ffn.gate.tid2eid" for i in range(3)]
    assert sum(".indexer.wq_b." in name for name in shapes) == 21
    assert sum(name.endswith(".attn.compressor.ape") for name in shapes) == 41
