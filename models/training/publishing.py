"""A checkpoint folder with the names, types and keys of the published DeepSeek-V4 ones."""

import json
import os
import re

import torch
from safetensors.torch import save_file
from transformers import DeepseekV4ForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from training.vocabulary import BOS, CHAT_TEMPLATE, EOS, PAD

RENAME = [  # library name -> published name; the first rule that matches is the one used
    (r"^model\.embed_tokens\.", "embed."),
    (r"^lm_head\.", "head."),
    (r"^model\.hc_head\.hc_", "hc_head_"),
    (r"\.self_attn\.compressor\.indexer\.scorer\.weights_proj\.", ".attn.indexer.weights_proj."),
    (r"\.self_attn\.compressor\.indexer\.q_b_proj\.", ".attn.indexer.wq_b."),
    (r"\.self_attn\.compressor\.indexer\.", ".attn.indexer.compressor."),
    (r"\.self_attn\.", ".attn."),
    (r"\.input_layernorm\.", ".attn_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (r"\.attn_hc\.", ".hc_attn_"),
    (r"\.ffn_hc\.", ".hc_ffn_"),
    (r"\.mlp\.", ".ffn."),
]
LEAVES = {
    "q_a_proj": "wq_a",
    "q_b_proj": "wq_b",
    "kv_proj": "wkv",
    "o_a_proj": "wo_a",
    "o_b_proj": "wo_b",
    "gate_proj": "wgate",
    "position_bias": "ape",
    "q_a_norm": "q_norm",
    "sinks": "attn_sink",
    "e_score_correction_bias": "bias",
}
_NOT_PUBLISHED = (
    "_name_or_path",
    "id2label",
    "label2id",
    "problem_type",
    "chunk_size_feed_forward",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "is_encoder_decoder",
)
MLP_LEAVES = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def published_name(name):
    """The published name of a parameter of the library's class."""
    for pattern, new in RENAME:
        name, hits = re.subn(pattern, new, name)
        if hits:
            break
    name = re.sub(r"^model\.", "", name)
    leaves = MLP_LEAVES if ".shared_experts." in name else LEAVES
    if "compressor." in name:
        leaves = {**leaves, "kv_norm": "norm"}
    return ".".join(leaves.get(part, part) for part in name.split("."))


def published_state(model, dtype):
    """Tensors under the names that the published DeepSeek-V4 checkpoints use.

    Norms, mHC, sinks and position biases stay in float32, as in those checkpoints.
    """
    keep = DeepseekV4ForCausalLM._keep_in_fp32_modules_strict
    out = {}
    for name, t in model.state_dict().items():
        t = t.detach()
        if t.is_floating_point():
            t = t.to(torch.float32 if any(k in name.split(".") for k in keep) else dtype)
        base = name.replace("model.", "", 1).replace(".mlp.", ".ffn.").rsplit(".", 1)[0]
        if name.endswith(".experts.gate_up_proj"):
            for j, w in enumerate(t):
                w1, w3 = w.chunk(2)
                out[f"{base}.{j}.w1.weight"], out[f"{base}.{j}.w3.weight"] = w1, w3
        elif name.endswith(".experts.down_proj"):
            for j, w in enumerate(t):
                out[f"{base}.{j}.w2.weight"] = w
        else:
            out[published_name(name)] = t
    return {k: v.contiguous().clone() for k, v in out.items()}


def published_config(cfg, dtype):
    """config.json with the published keys next to the ones that the library writes."""
    d = cfg.to_dict()
    c = d["rope_parameters"]["compress"]
    ratio = {"sliding_attention": 0, **cfg.compress_rates}
    d.update(
        architectures=["DeepseekV4ForCausalLM"],
        dtype=str(dtype).removeprefix("torch."),
        torch_dtype=str(dtype).removeprefix("torch."),
        topk_method="noaux_tc",
        compress_ratios=[ratio[t] for t in cfg.layer_types],
        compress_rate_csa=cfg.compress_rates["compressed_sparse_attention"],
        compress_rate_hca=cfg.compress_rates["heavily_compressed_attention"],
        num_hash_layers=cfg.mlp_layer_types.count("hash_moe"),
        qk_rope_head_dim=cfg.qk_rope_head_dim,
        rope_scaling={
            "type": "yarn",
            **{
                k: c[k]
                for k in ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
            },
        },
    )
    for key in _NOT_PUBLISHED:
        d.pop(key, None)
    return dict(sorted(d.items()))


def save(model, tok, out, corpus, dtype=torch.bfloat16):
    """Writes a checkpoint folder: weights, configuration, tokenizer, and the held-out text."""
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "heldout.txt"), "w", encoding="utf-8") as f:
        f.write("\n\n=====\n\n".join(held for _, held in corpus.values()))
    save_file(
        published_state(model, dtype), os.path.join(out, "model.safetensors"), {"format": "pt"}
    )
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(published_config(model.config, dtype), f, indent=2)
        f.write("\n")
    GenerationConfig(
        bos_token_id=0, eos_token_id=1, pad_token_id=2, do_sample=True, temperature=0.8, top_p=0.95
    ).save_pretrained(out)
    PreTrainedTokenizerFast(
        tokenizer_object=tok,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(out, save_jinja_files=False)
    path = os.path.join(out, "tokenizer_config.json")
    with open(path) as f:
        conf = json.load(f)
    conf |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    with open(path, "w") as f:
        json.dump(conf, f, indent=2, ensure_ascii=False)
        f.write("\n")
