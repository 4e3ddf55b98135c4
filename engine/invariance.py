"""Self-test at the start: do a model's rows depend on their neighbours on this machine?

That is a matter of the CPU's libraries, so it is looked at and not assumed.
"""

from __future__ import annotations

from disagg_kernels import Kernels
from disagg_kernels.testing import Shapes, row_dependences
from engine.config import SettingsError
from engine.model.config import ModelConfig


def require_invariance(
    kernels: Kernels, config: ModelConfig, *, attn_tp: int = 1, moe_tp: int = 1
) -> None:
    """Runs products of a rank's shapes with few and with many rows and compares them.

    Args:
        kernels: the operations.
        config: the model.
        attn_tp: ranks that share the heads.
        moe_tp: ranks that share the inner width of an expert.

    Raises:
        SettingsError: rows depend on their neighbours here; names the operations and a way out.
    """
    d, width = config.hidden_size, config.head_dim
    inner = config.num_attention_heads * width // config.o_groups
    heads, groups = config.num_attention_heads // attn_tp, config.o_groups // attn_tp
    expert_width = config.moe_intermediate_size // moe_tp
    found = row_dependences(
        kernels,
        Shapes(
            linear=(
                (d, config.q_lora_rank + width),
                (config.q_lora_rank, heads * width),
                (inner, config.o_lora_rank),
                (groups * config.o_lora_rank, d),
                (d, config.n_routed_experts),
                (d, 2 * config.moe_intermediate_size),
                (config.moe_intermediate_size, d),
                (d, 2 * expert_width),
                (expert_width, d),
                (config.hc_mult * d, (2 + config.hc_mult) * config.hc_mult),
                (config.hc_mult * d, config.hc_mult),
                (d, min(config.vocab_size, 4096)),
            ),
            group_linear=(groups, inner, config.o_lora_rank),
            heads=heads,
            head_dim=width,
            index_heads=config.index_n_heads,
            index_width=config.index_head_dim,
            streams=config.hc_mult,
            hidden=d,
            experts=min(config.n_routed_experts, 16),
            routed=config.n_routed_experts,
            top_k=config.num_experts_per_tok,
            expert_width=expert_width,
        ),
    )
    if found:
        raise SettingsError(
            "engine.batch_invariant is on, but on this machine rows depend on their neighbours: "
            + "; ".join(found)
            + ". Set engine.batch_invariant to false and accept that equal requests may differ "
            "where two tokens are almost equally likely"
        )
