"""tiny-v4 before its first step: its configuration and its starting weights."""

import math

import torch
from transformers import DeepseekV4Config

from training.vocabulary import VOCAB_SIZE

# Channels for each of the four tokens before one, and for what the output layer reads as a token.
SLOT, CODE = 8, 16


def make_config():
    """The architecture: every kind of layer and router of the full-size models, in small."""
    return DeepseekV4Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        moe_intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=64,
        partial_rotary_factor=0.25,
        q_lora_rank=64,
        o_groups=2,
        o_lora_rank=64,
        layer_types=[
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
        ],
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 32},
        mlp_layer_types=["hash_moe", "hash_moe", "moe", "moe", "moe", "moe"],
        n_routed_experts=16,
        num_experts_per_tok=2,
        n_shared_experts=1,
        routed_scaling_factor=1.5,
        scoring_func="sqrtsoftplus",
        hc_mult=2,
        hc_sinkhorn_iters=4,
        sliding_window=64,
        index_n_heads=4,
        index_head_dim=32,
        index_topk=32,
        num_nextn_predict_layers=0,
        max_position_embeddings=4096,
        rope_theta=10000.0,
        compress_rope_theta=160000.0,
        # YaRN on the compressed layers, as in the full-size models
        rope_parameters={
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
        dtype="float32",
    )


def initialise(model, seed):
    """Starting weights that already contain a (blunt) copying circuit; all of it is trained.

    A model of this size sees only a few million tokens here, too few to find "look up where
    this context occurred before and repeat what followed" by itself.  So the residual channels
    start with a layout: channel 0 constant | the token's own embedding | `slot` channels for
    each of the 4 tokens before it | `code` channels that the output layer reads as a token.
      layer 0        head h copies a projection of the token h+1 back into slot h
      CSA layers     q = (this token, slots 1..3), k = (slots 1..4), v = code of the token
    Everything else is random: library initialisation, near-identity mHC, random hash tables.
    """
    cfg, m = model.config, model.model
    g = torch.Generator().manual_seed(seed)

    def randn(*shape, std=1.0):
        return torch.randn(*shape, generator=g) * std

    slots_start = cfg.hidden_size - 4 * SLOT - CODE
    own, codes = slice(1, slots_start), slice(cfg.hidden_size - CODE, cfg.hidden_size)
    read_slot = randn(SLOT, slots_start - 1, std=(slots_start - 1) ** -0.5)
    read_code = randn(CODE, slots_start - 1, std=(slots_start - 1) ** -0.5)
    with torch.no_grad():
        emb = m.embed_tokens.weight
        emb.zero_()
        emb[:, 0] = 1.5
        emb[:, own] = randn(VOCAB_SIZE, slots_start - 1, std=0.5)
        model.lm_head.weight[:, codes] = 0.6 * emb[:, own] @ read_code.T
        for layer in m.layers:
            for hc in (layer.attn_hc, layer.ffn_hc):
                hc.base[2 * cfg.hc_mult :] = (3.0 * torch.eye(cfg.hc_mult)).flatten()
            if layer.mlp.is_hash:
                for row in layer.mlp.gate.tid2eid:
                    row.copy_(
                        torch.randperm(cfg.n_routed_experts, generator=g)[: cfg.num_experts_per_tok]
                    )
            att = layer.self_attn
            for p in (att.q_a_proj, att.q_b_proj, att.kv_proj, att.o_a_proj, att.o_b_proj):
                p.weight.copy_(randn(*p.weight.shape, std=0.3 * p.weight.shape[-1] ** -0.5))
            if att.layer_type == "sliding_attention":
                _look_back(att, cfg, m.rotary_emb.main_inv_freq, own, read_slot)
            elif att.layer_type == "compressed_sparse_attention":
                _match_and_copy(att, cfg, own, read_slot, read_code)
            if att.compressor is not None:  # compressed keys start in the space of the plain keys
                kv = att.kv_proj.weight
                for start in range(0, att.compressor.kv_proj.weight.shape[0], cfg.head_dim):
                    att.compressor.kv_proj.weight[start : start + cfg.head_dim] = kv


def _look_back(att, cfg, freq, own, read_slot):
    """Layer 0: head h copies a projection of the token h+1 back into slot h."""
    H, D, R = cfg.num_attention_heads, cfg.head_dim, cfg.qk_rope_head_dim
    q_a, q_b, kv = att.q_a_proj.weight, att.q_b_proj.weight.view(H, D, -1), att.kv_proj.weight
    o_a = att.o_a_proj.weight.view(cfg.o_groups, cfg.o_lora_rank, H // cfg.o_groups, D)
    q_a[0] = 0
    q_a[0, 0] = 1
    q_b[:, D - R :] = 0
    kv.zero_()
    kv[:SLOT, own] = 1.2 * read_slot
    att.kv_norm.weight[D - R :] = 2.0
    for i, (a, b) in enumerate(((6.5, 4.0), (4.0, 3.0), (2.0, 2.0), (1.0, 1.0))):
        kv[D - R + 2 * i, 0] = 0.18 * b
        for h in range(H):
            q_b[h, D - R + 2 * i, 0] = a * math.cos(-freq[i].item() * (h + 1))
            q_b[h, D - R + 2 * i + 1, 0] = a * math.sin(-freq[i].item() * (h + 1))
    for h in range(H):
        grp, k = divmod(h, H // cfg.o_groups)
        for j in range(SLOT):
            o_a[grp, k * SLOT + j, k, j] = 1.0
            row = own.stop + h * SLOT + j
            att.o_b_proj.weight[row, grp * cfg.o_lora_rank + k * SLOT + j] = 0.3


def _match_and_copy(att, cfg, own, read_slot, read_code):
    """CSA layers: q = (this token, slots 1..3), k = (slots 1..4), v = code of the token."""
    H, D, n = cfg.num_attention_heads, cfg.head_dim, cfg.hidden_size
    q_a, q_b, kv = att.q_a_proj.weight, att.q_b_proj.weight.view(H, D, -1), att.kv_proj.weight
    o_a = att.o_a_proj.weight.view(cfg.o_groups, cfg.o_lora_rank, H // cfg.o_groups, D)
    slots = slice(own.stop, n - CODE)
    q_a[:SLOT] = 0
    q_a[:SLOT, own] = read_slot
    q_a[SLOT : 4 * SLOT] = torch.eye(n)[own.stop : own.stop + 3 * SLOT]
    for h, weights in enumerate(
        ((1, 1, 1, 1), (1, 1, 0.3, 0.3), (0.3, 0.3, 1, 1), (0.2, 0.2, 0.2, 0.2))
    ):
        for i, weight in enumerate(weights):
            one = slice(i * SLOT, (i + 1) * SLOT)
            q_b[h, one, one] += 2 * weight * torch.eye(SLOT)
    kv[: 4 * SLOT] = 1.5 * torch.eye(n)[slots]
    kv[4 * SLOT : 4 * SLOT + CODE] = 0
    kv[4 * SLOT : 4 * SLOT + CODE, own] = read_code
    att.kv_norm.weight[: 4 * SLOT] = 1.5
    for grp in range(cfg.o_groups):
        for j in range(CODE):
            o_a[grp, j, :, 4 * SLOT + j] = 0.5
            att.o_b_proj.weight[n - CODE + j, grp * cfg.o_lora_rank + j] = 0.2
