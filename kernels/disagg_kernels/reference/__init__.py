"""Plain torch twins of every operation: their meaning, and the CPU engine's implementation."""

from collections.abc import Callable, Mapping
from typing import Any

from disagg_kernels.reference import attention, compress, dense, index, kv_blocks, mhc, moe, quant

OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "rms_norm": dense.rms_norm,
    "apply_rope": dense.apply_rope,
    "linear": dense.linear,
    "group_linear": dense.group_linear,
    "hc_pre": mhc.hc_pre,
    "hc_mix": mhc.hc_mix,
    "hc_post": mhc.hc_post,
    "hc_head": mhc.hc_head,
    "route": moe.route,
    "swiglu": moe.swiglu,
    "grouped_experts": moe.grouped_experts,
    "compress": compress.compress,
    "index_logits": index.index_logits,
    "select_topk": index.select_topk,
    "sparse_attention": attention.sparse_attention,
    "gather_rows": kv_blocks.gather_rows,
    "quantize_dequantize": quant.quantize_dequantize,
    "hadamard": quant.hadamard,
}

__all__ = ["OPERATIONS"]
