"""The training forward pass: the function of the library class in layouts that are cheap on a CPU.

Banded sliding window, sorted experts, stream-major hyper-connections. It also gives the loss that
trains the Lightning Indexer: its top-k has no gradient, so it learns from the attention mass of the
heads.
"""

import torch
import torch.nn.functional as F


def rms(x, weight, eps):
    """Root-mean-square norm over the last axis; without a weight it only scales."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def rope(x, cis):
    """Interleaved RoPE on the trailing channels; cis is broadcast against x's leading axes."""
    d = 2 * cis.shape[-1]
    r = torch.view_as_complex(x[..., -d:].float().reshape(*x.shape[:-1], d // 2, 2)) * cis
    return torch.cat([x[..., :-d], torch.view_as_real(r).flatten(-2)], -1)


class Trainer:
    """The training forward pass over the parameters of a `DeepseekV4ForCausalLM`."""

    def __init__(self, model):
        self.m, self.c = model, model.config
        self.eps = self.c.rms_norm_eps
        self.load = {}

    # -- manifold-constrained hyper-connections; streams: list of [T, D]
    def hc_weights(self, streams, hc):
        n, T = self.c.hc_mult, streams[0].shape[0]
        r = torch.rsqrt(sum(s.square().mean(-1) for s in streams) / n + self.eps)
        w = sum(s @ f.T for s, f in zip(streams, hc.fn.chunk(n, 1))).T * r  # [(2+n)n, T]
        pre = torch.sigmoid(w[:n] * hc.scale[0] + hc.base[:n, None]) + self.c.hc_eps
        post = 2 * torch.sigmoid(w[n : 2 * n] * hc.scale[1] + hc.base[n : 2 * n, None])
        comb = (w[2 * n :] * hc.scale[2] + hc.base[2 * n :, None]).view(n, n, T).softmax(
            1
        ) + self.c.hc_eps
        comb = comb / (comb.sum(0, keepdim=True) + self.c.hc_eps)
        for _ in range(self.c.hc_sinkhorn_iters - 1):
            comb = comb / (comb.sum(1, keepdim=True) + self.c.hc_eps)
            comb = comb / (comb.sum(0, keepdim=True) + self.c.hc_eps)
        x = sum(p[:, None] * s for p, s in zip(pre, streams))
        return x, post, comb

    def hc_merge(self, streams, out, post, comb):
        n = len(streams)
        return [
            sum((comb[j, k][:, None] * streams[j] for j in range(n)), post[k][:, None] * out)
            for k in range(n)
        ]

    # -- compressed KV entries
    def compress(self, mod, x, ratio, head_dim, overlap, cis):
        B, S, _ = x.shape
        n = S // ratio
        kv = mod.kv_proj(x)[:, : n * ratio].view(B, n, ratio, -1)
        gate = mod.gate_proj(x)[:, : n * ratio].view(B, n, ratio, -1) + mod.position_bias
        if overlap:
            # The first half of the channels serves the next window, the second half this one.
            def shift(t, v):
                first = t.new_full((B, 1, ratio, head_dim), v)
                return torch.cat([first, t[:, :-1, :, :head_dim]], 1)

            kv = torch.cat([shift(kv, 0.0), kv[..., head_dim:]], 2)
            gate = torch.cat([shift(gate, float("-inf")), gate[..., head_dim:]], 2)
        c = rms((kv * gate.softmax(2)).sum(2), mod.kv_norm.weight, self.eps)
        return rope(c, cis[: n * ratio : ratio])

    def index_scores(self, ix, x, qr, cis, ratio):
        """What the indexer gives each token for each entry, [B, S, N]; future entries included.

        It learns from its own loss only, so nothing flows back to its inputs.
        """
        B, S, _ = x.shape
        c, x, qr = self.c, x.detach(), qr.detach()
        ki = self.compress(ix, x, ratio, c.index_head_dim, True, cis)
        qi = rope(ix.q_b_proj(qr).view(B, S, -1, c.index_head_dim), cis[:, None])
        s = F.relu(qi.reshape(B, -1, c.index_head_dim) @ ki.transpose(-1, -2))
        w = ix.scorer.weights_proj(x) * (c.index_n_heads**-0.5 * c.index_head_dim**-0.5)
        return (s.view(B, S, -1, ki.shape[1]) * w[..., None]).sum(2)

    def index_loss(self, pc, score, allowed):
        """Teaches the indexer where the heads look: cross-entropy to their attention mass."""
        with torch.no_grad():
            mass = pc.sum(2)
            total = mass.sum(-1, keepdim=True)
            target = mass / (total + 1e-9)
            weight = (total.squeeze(-1) / pc.shape[2] + 0.02) * (total.squeeze(-1) > 1e-6)
        logp = score.masked_fill(~allowed, -1e9).log_softmax(-1)
        return -((target * logp).sum(-1) * weight).sum() / weight.sum()

    def attention(self, att, x, tables, sparse):
        B, S, _ = x.shape
        c, H, D, W = self.c, self.c.num_attention_heads, self.c.head_dim, self.c.sliding_window
        cis = tables["main" if att.compressor is None else "compress"]
        qr = rms(att.q_a_proj(x), att.q_a_norm.weight, self.eps)
        q = rope(rms(att.q_b_proj(qr).view(B, S, H, D), None, self.eps), cis[:, None]) * D**-0.5
        kv = rope(rms(att.kv_proj(x), att.kv_norm.weight, self.eps), cis)

        nc = S // W
        cur = kv.view(B, nc, W, D)
        keys = torch.cat([F.pad(cur[:, :-1], (0, 0, 0, 0, 1, 0)), cur], 2)  # [B, nc, 2W, D]
        i, j = torch.arange(W)[:, None], torch.arange(2 * W)[None]
        band = ((i + W - j >= 0) & (i + W - j < W)).expand(nc, W, 2 * W).clone()
        band[0, :, :W] = False
        bias = torch.zeros(nc, W, 1, 2 * W).masked_fill_(~band[:, :, None], float("-inf"))
        local = (q.view(B, nc, W * H, D) @ keys.transpose(-1, -2)).view(B, nc, W, H, 2 * W) + bias
        parts = [local.view(B, S, H, 2 * W)]
        index_loss = x.new_zeros(())

        comp = None
        if att.compressor is not None:
            csa = att.layer_type == "compressed_sparse_attention"
            ratio = c.compress_rates[att.layer_type]
            comp = self.compress(att.compressor, x, ratio, D, csa, cis)
            N = comp.shape[1]
            future = torch.arange(N)[None] >= ((torch.arange(S) + 1) // ratio)[:, None]  # [S, N]
            allowed = ~future[None]
            if csa:
                score = self.index_scores(att.compressor.indexer, x, qr, cis, ratio)
                score = score.masked_fill(future, float("-inf"))
                if sparse and c.index_topk < N:
                    top = score.detach().topk(c.index_topk, -1).indices
                    chosen = torch.zeros(B, S, N, dtype=torch.bool).scatter_(-1, top, True)
                    allowed = chosen & ~future
            block = torch.zeros(allowed.shape).masked_fill_(~allowed, float("-inf"))[:, :, None]
            parts.append((q.reshape(B, S * H, D) @ comp.transpose(-1, -2)).view(B, S, H, N) + block)
        parts.append(att.sinks.view(1, 1, H, 1).expand(B, S, H, 1))
        p = torch.cat(parts, -1).softmax(-1)
        out = (p[..., : 2 * W].reshape(B, nc, W * H, 2 * W) @ keys).view(B, S, H, D)
        if comp is not None:
            pc = p[..., 2 * W : 2 * W + N]
            out = out + (pc.reshape(B, S * H, N) @ comp).view(B, S, H, D)
            if csa and torch.is_grad_enabled():
                index_loss = self.index_loss(pc, score, allowed)
        out = rope(out, cis.conj()[:, None]).reshape(B * S, c.o_groups, -1)
        wa = att.o_a_proj.weight.view(c.o_groups, -1, out.shape[-1])
        out = torch.cat([out[:, g] @ wa[g].T for g in range(c.o_groups)], -1)
        return att.o_b_proj(out), index_loss

    def moe(self, mlp, x, ids, key):
        c, k = self.c, self.c.num_experts_per_tok
        score = F.softplus(F.linear(x, mlp.gate.weight)).sqrt()
        if mlp.is_hash:
            idx = mlp.gate.tid2eid[ids]
        else:
            idx = (score.detach() + mlp.gate.e_score_correction_bias).topk(k, -1).indices
        w = score.gather(1, idx)
        w = w / (w.sum(-1, keepdim=True) + 1e-20) * c.routed_scaling_factor
        flat = idx.reshape(-1)
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=c.n_routed_experts)
        if not mlp.is_hash:
            self.load[key] = counts
        tok, sizes = order // k, counts.tolist()

        def act(g, u):
            return F.silu(g.clamp(max=c.swiglu_limit)) * u.clamp(-c.swiglu_limit, c.swiglu_limit)

        xs = x[tok].split(sizes)
        h = torch.cat([a @ b.T for a, b in zip(xs, mlp.experts.gate_up_proj.unbind(0))])
        h = act(*h.chunk(2, -1)) * w.reshape(-1)[order][:, None]
        y = torch.cat([a @ b.T for a, b in zip(h.split(sizes), mlp.experts.down_proj.unbind(0))])
        se = mlp.shared_experts
        shared = se.down_proj(act(se.gate_proj(x), se.up_proj(x)))
        return shared.index_add(0, tok, y)

    def forward(self, ids, sparse):
        B, S = ids.shape
        m, re_ = self.m.model, self.m.model.rotary_emb
        pos = torch.arange(S).float()[:, None]
        tables = {
            k: torch.polar(torch.ones(S, f.shape[0]), pos * f)
            for k, f in (("main", re_.main_inv_freq), ("compress", re_.compress_inv_freq))
        }
        e = m.embed_tokens(ids).view(B * S, -1)
        streams = [e] * self.c.hc_mult
        index_loss = 0.0
        for n, layer in enumerate(m.layers):
            x, post, comb = self.hc_weights(streams, layer.attn_hc)
            x = rms(x, layer.input_layernorm.weight, self.eps).view(B, S, -1)
            out, il = self.attention(layer.self_attn, x, tables, sparse)
            index_loss = index_loss + il
            streams = self.hc_merge(streams, out, post, comb)
            x, post, comb = self.hc_weights(streams, layer.ffn_hc)
            x = rms(x, layer.post_attention_layernorm.weight, self.eps)
            streams = self.hc_merge(streams, self.moe(layer.mlp, x, ids.reshape(-1), n), post, comb)
        hd = m.hc_head
        r = torch.rsqrt(sum(s.square().mean(-1) for s in streams) / self.c.hc_mult + hd.eps)
        w = sum(s @ f.T for s, f in zip(streams, hd.hc_fn.chunk(self.c.hc_mult, 1))).T * r
        pre = torch.sigmoid(w * hd.hc_scale + hd.hc_base[:, None]) + self.c.hc_eps
        x = rms(sum(p[:, None] * s for p, s in zip(pre, streams)), m.norm.weight, self.eps)
        return self.m.lm_head(x).view(B, S, -1), index_loss

    def balance(self, rate):
        """Auxiliary-loss-free load balancing: nudge the selection bias of each expert."""
        for n, counts in self.load.items():
            bias = self.m.model.layers[n].mlp.gate.e_score_correction_bias
            load = counts.float()
            bias += rate * torch.sign(load.mean() - load)
            bias -= bias.mean()
