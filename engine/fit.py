"""Can engines of a role run a model in a layout? Known before any rank is started; no tensors."""

from __future__ import annotations

from engine.config import EngineRole
from engine.model.config import ModelConfig
from engine.parallel.layout import (
    AttentionShape,
    ExpertShape,
    ExpertSlots,
    RunLayout,
    require_runnable,
)
from engine.parallel.lockstep import EngineKind

# Elements of an expert's row that share a scale in quantised checkpoints.
_SCALE_BLOCK = 32
_KINDS = {
    EngineRole.NORMAL: EngineKind.NORMAL,
    EngineRole.PREFILL: EngineKind.PREFILL,
    EngineRole.DECODE: EngineKind.DECODE,
}


def require_layout(
    config: ModelConfig, run: RunLayout, role: EngineRole, *, min_redundant: int = 0
) -> None:
    """Checks that engines of a role can run a model in a layout, with so many redundant experts.

    Raises:
        LayoutError: they cannot; names every reason and a way out.
    """
    require_runnable(
        run,
        kind=_KINDS[role],
        attention=AttentionShape(num_heads=config.num_attention_heads, num_groups=config.o_groups),
        expert=ExpertShape(
            intermediate=config.moe_intermediate_size,
            quantisation_block=_SCALE_BLOCK if config.has_quantised_weights else 1,
        ),
        slots=ExpertSlots(
            num_logical=config.n_routed_experts, ep=run.layout.ep, min_redundant=min_redundant
        ),
    )
