"""Rank side of the model tests: experts over the ranks, greedy tokens to files."""

import json
from pathlib import Path

import numpy as np
import torch

from disagg_kernels import select_kernels
from disagg_kernels.reference.dense import ROW_MULTIPLE
from engine.build import kv_layout
from engine.kv_pool import KvPool
from engine.model.decoder import Decoder
from engine.model.experts import ExpertPlacement
from engine.model_runner import ModelRunner
from engine.parallel.experts import Placement
from engine.parallel.worker import open_ports
from tests.fakes.models import LoadedModel, Solo

MAX_TOKENS = 256


def shuffled(num_logical, ep, extra, seed):
    """A placement that no algorithm would give: replicas anywhere."""
    generator = np.random.default_rng(seed)
    slots = np.arange(num_logical)
    more = generator.integers(0, num_logical, -num_logical % ep + extra * ep)
    return Placement(
        generator.permutation(np.concatenate([slots, more])), num_logical=num_logical, ep=ep
    )


def build(directory, dispatcher, placement):
    """A model and its runner, with or without a placement."""
    layout = kv_layout(directory)
    decoder = Decoder.load(
        directory, layout.config, layout, dispatcher, select_kernels("cpu"), placement=placement
    )
    return LoadedModel(directory=directory, layout=layout, decoder=decoder)


def greedy(context, options):
    """Each rank continues its own prompts; the map of the experts changes halfway."""
    torch.set_num_threads(1)
    directory = Path(options["model"])
    layout = kv_layout(directory)
    config = layout.config
    ports = open_ports(
        context,
        hidden=config.hidden_size,
        top_k=config.num_experts_per_tok,
        max_tokens=MAX_TOKENS,
    )
    placements = [None, None]
    if options["redundant"]:
        placements = [
            ExpertPlacement(
                num_logical=config.n_routed_experts,
                num_ranks=context.num_ranks,
                placement=shuffled(config.n_routed_experts, context.num_ranks, 2, seed),
            )
            for seed in (1, 2)
        ]
    first, second = (build(directory, ports.dispatcher, placement) for placement in placements)
    found = []
    for prompt in json.loads(options["prompts"])[context.rank]:
        pool = KvPool(layout, num_pages=32, num_slots=4, max_tokens=MAX_TOKENS)
        solo, later = (
            Solo(model, ModelRunner(model.decoder, layout, pool, row_multiple=ROW_MULTIPLE))
            for model in (first, second)
        )
        half = options["steps"] // 2
        tokens = solo.greedy(prompt, half)
        # The same pool, from the next step on with the other map.
        later.num_tokens = solo.num_tokens
        while len(tokens) < options["steps"]:
            tokens.append(int(later.feed(tokens[-1:]).argmax()))
        found.append(tokens)
    out = Path(options["out"]) / f"tokens-{context.rank}.json"
    out.write_text(json.dumps(found))
    ports.close()
