"""Muon for the matrices of attention and experts, AdamW for everything else."""

import torch
import torch.distributed as dist


def orthogonalise(g, steps=5):
    """The nearest matrix with singular values near 1, by Newton-Schulz steps; batches lead."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-2, -1)
    for _ in range(steps):
        s = x @ x.transpose(-2, -1)
        x = a * x + (b * s + c * s @ s) @ x
    return x.transpose(-2, -1) if tall else x


class Muon(torch.optim.Optimizer):
    """Muon for matrices (a leading axis is a batch of matrices: the experts).

    Every worker orthogonalises its share of the matrices; the updates are then exchanged.
    """

    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.01, rank=0, world=1):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.rank, self.world = rank, world

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params, work, cost = group["params"], {}, [0] * self.world
            for p in sorted(params, key=lambda p: -p.numel()):  # largest first, to the least loaded
                owner = cost.index(min(cost))
                cost[owner] += p.numel()
                work[p] = owner
            flat = torch.zeros(sum(p.numel() for p in params))
            for p, u in zip(params, flat.split([p.numel() for p in params])):
                if work[p] == self.rank:
                    buf = self.state[p].setdefault("m", torch.zeros_like(p))
                    buf.lerp_(p.grad, 1 - group["momentum"])
                    u.copy_(orthogonalise(p.grad.lerp(buf, group["momentum"])).flatten())
            if self.world > 1:
                dist.all_reduce(flat)
            for p, u in zip(params, flat.split([p.numel() for p in params])):
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(
                    u.view_as(p), alpha=-group["lr"] * max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5
                )


def make_optimisers(model, lr_muon, lr_adam, rank=0, world=1):
    """Muon and AdamW over all parameters of a model, each parameter in one of them."""
    muon, adam = [], []
    for name, p in model.named_parameters():
        matrix = ("self_attn" in name or "experts" in name) and p.ndim >= 2
        matrix = matrix and "position_bias" not in name and "indexer" not in name
        (muon if matrix else adam).append(p)
    return [
        Muon(muon, lr=lr_muon, rank=rank, world=world),
        torch.optim.AdamW(adam, lr=lr_adam, betas=(0.9, 0.95), weight_decay=0.0),
    ]
