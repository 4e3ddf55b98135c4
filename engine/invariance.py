"""Self-test at the start: do a model's rows depend on their neighbours on this machine?

That is a matter of the CPU's libraries, so it is looked at and not assumed.
"""

from __future__ import annotations

from disagg_kernels import Kernels
from disagg_kernels.testing import Shapes, row_dependences
from engine.config import SettingsError
from engine.model.config import ModelConfig


def require_invariance(kernels: Kernels, config: ModelConfig) -> None:
    """Runs products of a model's shapes with few and with many rows and compares them.

    Raises:
        SettingsError: rows depend on their neighbours here; names the operations and a way out.
    """
    d, width = config.hidden_size, config.head_dim
    inner = config.num_attention_heads * width // config.o_groups
    found = row_dependences(
        kernels,
        Shapes(
            linear=(
                (d, config.q_lora_rank + width),
                (config.q_lora_rank, config.num_attention_heads * width),
                (inner, config.o_lora_rank),
                (config.o_groups * config.o_lora_rank, d),
                (d, config.n_routed_experts),
                (d, 2 * config.moe_intermediate_size),
                (config.moe_intermediate_size, d),
                (config.hc_mult * d, (2 + config.hc_mult) * config.hc_mult),
                (config.hc_mult * d, config.hc_mult),
                (d, min(config.vocab_size, 4096)),
            ),
            group_linear=(config.o_groups, inner, config.o_lora_rank),
            heads=config.num_attention_heads,
            head_dim=width,
            index_heads=config.index_n_heads,
            index_width=config.index_head_dim,
            streams=config.hc_mult,
            hidden=d,
            experts=min(config.n_routed_experts, 16),
            routed=config.n_routed_experts,
            top_k=config.num_experts_per_tok,
            expert_width=config.moe_intermediate_size,
        ),
    )
    if found:
        raise SettingsError(
            "engine.batch_invariant is on, but on this machine rows depend on their neighbours: "
            + "; ".join(found)
            + ". Set engine.batch_invariant to false and accept that equal requests may differ "
            "where two tokens are almost equally likely"
        )
