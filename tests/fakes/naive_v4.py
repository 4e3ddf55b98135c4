"""DeepSeek-V4 written down once more, for tests: float64, whole sequences, loops, no state.

Follows the formulas of the model notes position by position and shares no code with the engine; it
reads checkpoints with float weights and released names. Slow, and meant to be read.
"""

import math
from pathlib import Path
from typing import Any

import torch

from tests.fakes.checkpoints import config_of, tensors_of

Selected = list[list[int]]


class NaiveV4:
    """One checkpoint; every method takes all tokens of one sequence from position 0 on."""

    def __init__(self, directory: Path) -> None:
        self.config: dict[str, Any] = config_of(directory)
        self._stored = tensors_of(directory)
        self.eps = self.config["rms_norm_eps"]
        self.rope_dim = self.config["qk_rope_head_dim"]
        self.ratios: list[int] = self.config["compress_ratios"]

    def t(self, name: str) -> torch.Tensor:
        """A tensor in float64."""
        return self._stored[name].double()

    def norm(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """Section 2.1."""
        scaled = x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps)
        return scaled if weight is None else scaled * weight

    def frequency(self, ratio: int, pair: int) -> float:
        """Section 4: angle per position."""
        dim, scaling = self.rope_dim, self.config["rope_scaling"]
        theta = self.config["compress_rope_theta" if ratio else "rope_theta"]
        plain = float(theta) ** (-2 * pair / dim)
        if not ratio or not scaling:
            return plain
        length = scaling["original_max_position_embeddings"]

        def corr(turns: float) -> float:
            return dim * math.log(length / (2 * math.pi * turns)) / (2 * math.log(theta))

        low = max(math.floor(corr(scaling["beta_fast"])), 0)
        high = min(math.ceil(corr(scaling["beta_slow"])), dim - 1)
        ramp = min(max((pair - low) / max(high - low, 1e-3), 0.0), 1.0)
        return plain / scaling["factor"] * ramp + plain * (1 - ramp)

    def rope(self, x: torch.Tensor, positions: list[int], ratio: int, sign: int = 1) -> Any:
        """Rotates the last channels of [rows, ..., width]; sign -1 turns back."""
        out = x.clone()
        first = x.shape[-1] - self.rope_dim
        for pair in range(self.rope_dim // 2):
            frequency = self.frequency(ratio, pair)
            for row, position in enumerate(positions):
                cos = math.cos(position * frequency)
                sin = sign * math.sin(position * frequency)
                a, b = x[row, ..., first + 2 * pair], x[row, ..., first + 2 * pair + 1]
                out[row, ..., first + 2 * pair] = a * cos - b * sin
                out[row, ..., first + 2 * pair + 1] = a * sin + b * cos
        return out

    def entries(self, x: torch.Tensor, prefix: str, ratio: int, width: int) -> torch.Tensor:
        """Section 6.1: one row per complete group; overlapping groups for a ratio of 4."""
        keys, scores = x @ self.t(f"{prefix}.wkv.weight").T, x @ self.t(f"{prefix}.wgate.weight").T
        ape = self.t(f"{prefix}.ape")
        scores = scores + torch.stack([ape[p % ratio] for p in range(len(x))])
        out = []
        for group in range(len(x) // ratio):
            own = range(group * ratio, (group + 1) * ratio)
            if ratio == 4:
                before = range((group - 1) * ratio, group * ratio) if group else range(0)
                k = torch.stack([keys[p, :width] for p in before] + [keys[p, width:] for p in own])
                z = torch.stack(
                    [scores[p, :width] for p in before] + [scores[p, width:] for p in own]
                )
            else:
                k, z = keys[own.start : own.stop], scores[own.start : own.stop]
            weights = torch.exp(z - z.max(0).values)
            out.append((weights * k).sum(0) / weights.sum(0))
        if not out:
            return x.new_empty(0, width)
        normed = self.norm(torch.stack(out), self.t(f"{prefix}.norm.weight"))
        rotated: torch.Tensor = self.rope(normed, [g * ratio for g in range(len(out))], ratio)
        return rotated

    def query_latent(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """Section 5: the normed latent that feeds queries and indexer."""
        prefix = f"layers.{layer}.attn"
        return self.norm(x @ self.t(f"{prefix}.wq_a.weight").T, self.t(f"{prefix}.q_norm.weight"))

    def selected(self, x: torch.Tensor, layer: int) -> Selected:
        """Section 6.2: the entries each position attends to, ascending."""
        ratio, top_k = self.ratios[layer], self.config["index_topk"]
        if ratio != 4:
            return [list(range((p + 1) // ratio)) if ratio else [] for p in range(len(x))]
        heads, width = self.config["index_n_heads"], self.config["index_head_dim"]
        prefix = f"layers.{layer}.attn.indexer"
        keys = self.entries(x, f"{prefix}.compressor", ratio, width)
        query = self.query_latent(x, layer) @ self.t(f"{prefix}.wq_b.weight").T
        query = self.rope(query.view(len(x), heads, width), list(range(len(x))), ratio)
        weight = x @ self.t(f"{prefix}.weights_proj.weight").T * width**-0.5 * heads**-0.5
        out = []
        for p in range(len(x)):
            visible = (p + 1) // ratio
            scores = [
                float((weight[p] * torch.relu(query[p] @ keys[g])).sum()) for g in range(visible)
            ]
            best = sorted(range(visible), key=lambda g: (-scores[g], g))[:top_k]
            out.append(sorted(best))
        return out

    def attention(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """Sections 5 and 6: [S, d] to [S, d]."""
        config, ratio, prefix = self.config, self.ratios[layer], f"layers.{layer}.attn"
        heads, width = config["num_attention_heads"], config["head_dim"]
        positions = list(range(len(x)))
        query = (self.query_latent(x, layer) @ self.t(f"{prefix}.wq_b.weight").T).view(
            len(x), heads, width
        )
        query = self.rope(self.norm(query, None), positions, ratio)
        kv = self.norm(x @ self.t(f"{prefix}.wkv.weight").T, self.t(f"{prefix}.kv_norm.weight"))
        kv = self.rope(kv, positions, ratio)
        entries = (
            self.entries(x, f"{prefix}.compressor", ratio, width)
            if ratio
            else x.new_empty(0, width)
        )
        selected, sink = self.selected(x, layer), self.t(f"{prefix}.attn_sink")
        out = torch.zeros_like(query)
        for p in positions:
            first = max(0, p - config["sliding_window"] + 1)
            keys = torch.cat([kv[first : p + 1], entries[selected[p]]])
            scores = torch.cat([query[p] @ keys.T * width**-0.5, sink[:, None]], 1)
            out[p] = torch.softmax(scores, 1)[:, :-1] @ keys
        out = self.rope(out, positions, ratio, sign=-1).reshape(len(x), -1)
        groups, rank = config["o_groups"], config["o_lora_rank"]
        wo_a = self.t(f"{prefix}.wo_a.weight").view(groups, rank, -1)
        parts = out.view(len(x), groups, -1)
        latent = torch.cat([parts[:, g] @ wo_a[g].T for g in range(groups)], 1)
        return latent @ self.t(f"{prefix}.wo_b.weight").T

    def expert(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        """Section 8: one expert."""
        limit = self.config["swiglu_limit"]
        gate = (x @ self.t(f"{prefix}.w1.weight").T).clamp(max=limit)
        up = (x @ self.t(f"{prefix}.w3.weight").T).clamp(-limit, limit)
        return (gate * torch.sigmoid(gate) * up) @ self.t(f"{prefix}.w2.weight").T

    def experts(self, x: torch.Tensor, token_ids: list[int], layer: int) -> torch.Tensor:
        """Section 8: router, chosen experts, shared expert."""
        config, prefix = self.config, f"layers.{layer}.ffn"
        scores = torch.sqrt(torch.log1p(torch.exp(x @ self.t(f"{prefix}.gate.weight").T)))
        out = self.expert(x, f"{prefix}.shared_experts")
        for p, token in enumerate(token_ids):
            if layer < config["num_hash_layers"]:
                chosen = self._stored[f"{prefix}.gate.tid2eid"][token].tolist()
            else:
                ranking = (scores[p] + self.t(f"{prefix}.gate.bias")).tolist()
                order = sorted(range(len(ranking)), key=lambda e: (-ranking[e], e))
                chosen = order[: config["num_experts_per_tok"]]
            total = sum(float(scores[p, e]) for e in chosen)
            for e in chosen:
                weight = float(scores[p, e]) / total * config["routed_scaling_factor"]
                out[p] += weight * self.expert(x[p], f"{prefix}.experts.{e}")
        return out

    def coefficients(self, streams: torch.Tensor, prefix: str) -> tuple[torch.Tensor, ...]:
        """Section 3.1: pre, post and comb of one site."""
        n, hc_eps = self.config["hc_mult"], self.config["hc_eps"]
        flat = streams.flatten(1)
        mixed = self.norm(flat, None) @ self.t(f"{prefix}_fn").T
        scale, base = self.t(f"{prefix}_scale"), self.t(f"{prefix}_base")
        pre = torch.sigmoid(mixed[:, :n] * scale[0] + base[:n]) + hc_eps
        post = 2 * torch.sigmoid(mixed[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        comb = (mixed[:, 2 * n :] * scale[2] + base[2 * n :]).view(-1, n, n)
        comb = torch.softmax(comb, -1) + hc_eps
        comb = comb / (comb.sum(1, keepdim=True) + hc_eps)
        for _ in range(self.config["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(2, keepdim=True) + hc_eps)
            comb = comb / (comb.sum(1, keepdim=True) + hc_eps)
        return pre, post, comb

    def expand(
        self, y: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
    ) -> torch.Tensor:
        """Section 3.2."""
        return post[:, :, None] * y[:, None, :] + torch.einsum("sjk,sjd->skd", comb, streams)

    def collapse_head(self, streams: torch.Tensor) -> torch.Tensor:
        """Section 3.3."""
        mixed = self.norm(streams.flatten(1), None) @ self.t("hc_head_fn").T
        gates = torch.sigmoid(mixed * self.t("hc_head_scale") + self.t("hc_head_base"))
        return ((gates + self.config["hc_eps"])[:, :, None] * streams).sum(1)

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Section 2: logits of every position, [S, vocab]."""
        n = self.config["hc_mult"]
        streams = self.t("embed.weight")[token_ids][:, None, :].repeat(1, n, 1)
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{layer}"
            for site in ("attn", "ffn"):
                pre, post, comb = self.coefficients(streams, f"{prefix}.hc_{site}")
                x = (pre[:, :, None] * streams).sum(1)
                x = self.norm(x, self.t(f"{prefix}.{site}_norm.weight"))
                if site == "attn":
                    y = self.attention(x, layer)
                else:
                    y = self.experts(x, token_ids, layer)
                streams = self.expand(y, streams, post, comb)
        hidden = self.norm(self.collapse_head(streams), self.t("norm.weight"))
        return hidden @ self.t("head.weight").T
