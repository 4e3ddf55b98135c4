"""Layouts against models and roles, before anything is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.config import EngineRole
from engine.fit import require_layout
from engine.model.config import ModelConfig
from engine.parallel.errors import LayoutError
from engine.parallel.layout import parse_layout
from tests.fakes.models import GOLDEN, TINY


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("dp=8,ep=8", EngineRole.DECODE),
        # More ranks than experts: redundant ones fill the slots.
        ("dp=128,ep=128", EngineRole.DECODE),
        ("dp=4,cp=2,ep=8", EngineRole.PREFILL),
        ("dp=4,ep=8,attn_tp=2,path=b", EngineRole.DECODE),
        ("dp=4,ep=8,attn_tp=2,path=a", EngineRole.NORMAL),
    ],
)
def test_a_layout_that_fits(text: str, role: EngineRole) -> None:
    require_layout(ModelConfig.load(TINY), parse_layout(text), role)


@pytest.mark.parametrize(
    ("text", "role", "message"),
    [
        ("dp=2,cp=2", EngineRole.DECODE, "V6: cp 2 with a decode engine"),
        ("dp=1,attn_tp=16", EngineRole.PREFILL, "HEADS: attn_tp 16 does not divide both"),
        ("dp=3,ep=2", EngineRole.NORMAL, r"V2: ep 2 does not divide dp \* cp = 3"),
    ],
)
def test_a_layout_the_model_or_the_role_cannot_have(
    text: str, role: EngineRole, message: str
) -> None:
    with pytest.raises(LayoutError, match=message):
        require_layout(ModelConfig.load(TINY), parse_layout(text), role)


def test_more_redundant_experts_than_serve_anybody() -> None:
    config, run = ModelConfig.load(TINY), parse_layout("dp=2,ep=2")
    require_layout(config, run, EngineRole.NORMAL, min_redundant=16)
    with pytest.raises(LayoutError, match="SLOTS: min_redundant 17 is more than the 16"):
        require_layout(config, run, EngineRole.NORMAL, min_redundant=17)


def test_scales_of_quantised_experts_stay_whole() -> None:
    quantised = ModelConfig.load(GOLDEN / "v4_quant")
    assert quantised.has_quantised_weights
    ranks = quantised.moe_intermediate_size // 16
    with pytest.raises(LayoutError, match="not at borders of 32"):
        require_layout(quantised, parse_layout(f"dp={ranks},ep=1,path=a"), EngineRole.NORMAL)


@pytest.mark.medium
def test_looking_at_a_layout_loads_no_tensor_library() -> None:
    program = "import sys; sys.modules['torch'] = None; import engine.fit"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
