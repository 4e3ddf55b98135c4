"""Rank side of the context tests: engines of several ranks that share experts, step by step."""

import json
from pathlib import Path

import numpy as np
import torch

from disagg_kernels import select_kernels
from disagg_kernels.reference.dense import ROW_MULTIPLE
from engine.build import kv_layout
from engine.kv_pool import KvPool
from engine.model.decoder import Decoder
from engine.model_runner import ModelRunner
from engine.parallel.layout import Layout, RunLayout
from engine.parallel.worker import open_ports
from engine.plan import StepKind
from tests.fakes.context import Sequences

MAX_TOKENS = 512


def prompts_of(engine, num_tokens, vocab):
    """Tokens of the two sequences of an engine."""
    generator = np.random.default_rng(engine)
    return generator.integers(3, vocab, (2, num_tokens)).tolist()


def steps_of(options, engine, block_tokens, vocab):
    """The plans of an engine and how far its sequences are after each of them."""
    counts = json.loads(options["steps"])
    total = sum(sum(step[1][engine]) for step in counts)
    sequences = Sequences(prompts_of(engine, total + 1, vocab), block_tokens)
    for kind, of_engines in counts:
        yield sequences.plan(of_engines[engine], StepKind(kind)), sequences


def record(runner, plans):
    """Runs plans; logits and images of all sequences after every step, as arrays."""
    found = {}
    for number, (plan, sequences) in enumerate(plans):
        found[f"logits-{number}"] = runner.run(plan).logits.numpy()
        for index, image in enumerate(sequences.images(runner)):
            whole = b"".join([*image.blocks, image.partial, image.state])
            found[f"image-{number}-{index}"] = np.frombuffer(whole, dtype=np.uint8)
    return found


def run(context, options):
    """Runs the steps of this rank's engine; results and the ledger's counts go to files."""
    torch.set_num_threads(1)
    directory = Path(options["model"])
    layout = kv_layout(directory)
    config = layout.config
    world = Layout(dp=context.num_ranks // options["cp"], cp=options["cp"], ep=context.num_ranks)
    ports = open_ports(
        context,
        hidden=config.hidden_size,
        top_k=config.num_experts_per_tok,
        max_tokens=MAX_TOKENS,
        run=RunLayout(layout=world),
    )
    decoder = Decoder.load(
        directory,
        config,
        layout,
        ports.dispatcher,
        select_kernels("cpu"),
        groups=ports.groups,
    )
    pool = KvPool(layout, num_pages=40, num_slots=4, max_tokens=MAX_TOKENS)
    runner = ModelRunner(decoder, layout, pool, row_multiple=ROW_MULTIPLE)
    ports.ready()
    engine = context.rank // options["cp"]
    plans = steps_of(options, engine, layout.block_tokens, config.vocab_size)
    out = Path(options["out"])
    np.savez(out / f"found-{context.rank}.npz", **record(runner, plans))
    counts = {"/".join(key): count for key, count in ports.ledger.totals().counts.items()}
    (out / f"counts-{context.rank}.json").write_text(json.dumps(counts))
    ports.close()
