"""Rank side of the layout tests: engines of one or several ranks serve golden prompts."""

import hashlib
import json
import os
import signal
from pathlib import Path

import numpy as np
import torch

import engine.assembly
from engine.assembly import BuiltFollower
from engine.build import build_rank
from engine.config import EngineSettings
from engine.engine import EngineFailed
from engine.input_batch import InputBuilder
from engine.model.sizing.catalog import read_config
from engine.model.sizing.sizes import ModelSizes
from engine.model_runner import ModelRunner
from engine.parallel.errors import GroupError
from engine.parallel.layout import parse_layout
from engine.parallel.ledger import FLOAT32_WIRE, StepShape, as_recorded, predict_step
from engine.parallel.rows.modes import PaddingMode, choose_combine
from engine.parallel.rows.splits import Split
from engine.plan import StepKind
from engine.request import EngineRequest, SamplingParams, TokenOut


def build(context, options, **changes):
    """This rank of the layout of the options."""
    torch.set_num_threads(1)
    values = {"num_pages": 160, "max_num_seqs": 8, "max_num_batched_tokens": 96, **changes}
    settings = EngineSettings(
        rank=context.rank,
        num_ranks=context.num_ranks,
        late_scheduling=bool(options.get("late", False)),
        **values,
    )
    return build_rank(
        Path(options["model"]),
        settings,
        context=context,
        run=parse_layout(options["layout"]),
        kv_quantisers=options.get("kv_quantisers", "off"),
        min_redundant=options.get("min_redundant", 0),
        rebalance_interval_steps=options.get("rebalance_interval_steps"),
    )


def submit(built, prompts, wanted):
    for number, prompt in enumerate(prompts):
        built.engine.add(
            EngineRequest(
                request_id=str(number),
                token_ids=tuple(prompt),
                sampling=SamplingParams(max_tokens=wanted, ignore_eos=True),
            )
        )


def serve(context, options, on_built=lambda built: None):
    """Leaders serve the prompts of their engine; tokens and counts of every rank go to a file."""
    built = build(context, options)
    on_built(built)
    out = Path(options["out"])
    tokens = {}
    if isinstance(built, BuiltFollower):
        built.follower.follow()
    else:
        layout = built.ports.run.layout
        first = context.rank // layout.engine_size
        prompts = json.loads(options["prompts"])[first :: layout.num_engines]
        submit(built, prompts, options["tokens"])
        for _ in range(2000):
            if not built.engine.has_work():
                built.engine.request_stop()
            _, events = built.engine.step()
            for event in events:
                if isinstance(event, TokenOut):
                    tokens.setdefault(event.request_id, []).append(event.token_id)
            if built.engine.is_stop_agreed:
                break
        tokens = [tokens[str(number)] for number in range(len(prompts))]
    totals = built.ports.ledger.totals()
    (out / f"layout-{context.rank}.json").write_text(
        json.dumps(
            {
                "tokens": tokens,
                "digests": totals.digests,
                "counts": {"/".join(key): count for key, count in totals.counts.items()},
            }
        )
    )
    built.close()


def check_ledger(context, options):
    """As `serve`, with every step of this rank against the prediction: counts and bytes."""
    checked = []
    run, agree, build_inputs = ModelRunner.run, ModelRunner._agree, InputBuilder.build
    step = {}
    layout = parse_layout(options["layout"]).layout

    def agree_noted(self, plan):
        step["agreed"] = agree(self, plan)
        return step["agreed"]

    def build_noted(self, plan):
        step["inputs"] = build_inputs(self, plan)
        return step["inputs"]

    def run_checked(self, plan):
        before = len(step["ledger"].open_step())
        step["inputs"] = None
        result = run(self, plan)
        entries = step["ledger"].open_step()[before:]
        found = {}
        for entry in entries:
            count, num_bytes = found.get((entry.channel, entry.operation), (0, 0))
            found[entry.channel, entry.operation] = (count + 1, num_bytes + entry.num_bytes)
        assert found == expected(plan), (plan.kind, plan.num_tokens, found, expected(plan))
        checked.append(plan.num_tokens)
        return result

    def expected(plan):
        groups, agreed, inputs = step["groups"], step["agreed"], step["inputs"]
        is_prefill = plan.kind is StepKind.PREFILL
        padding = agreed.padding if agreed else PaddingMode.SUM
        shape = StepShape(
            tokens=plan.num_tokens,
            is_prefill=is_prefill,
            path=groups.path,
            padding=padding,
            combine=choose_combine(padding, attn_tp=layout.attn_tp),
            group_rows=agreed.counts if agreed else None,
            # A placeholder has no tensors, and no rows.
            rank_rows=inputs.num_rows if inputs else 0,
            exit_rows=len(inputs.sample_rows) if inputs and inputs.num_samples else 0,
            wire=FLOAT32_WIRE,
        )
        wanted = as_recorded(predict_step(layout, model, shape), layout, shape)
        for operation in ("all_reduce", "all_gather"):
            wanted.pop(("vote", operation), None)
        # Predicted is the rank with most rows; here it is known how many this one dispatches.
        rows = plan.num_tokens
        if groups.cp.size > 1 and is_prefill:
            rows = inputs.num_tokens if inputs else 0
        else:
            for inner in (groups.cp, groups.attn_tp):
                rows = Split(num_rows=rows, num_ranks=inner.size).sizes[inner.rank]
        sizes = {
            "dispatch": FLOAT32_WIRE.dispatch_bytes(model.hidden),
            "combine": FLOAT32_WIRE.combine_bytes(model.hidden),
        }
        for operation, size in sizes.items():
            if ("experts", operation) in wanted:
                count, most = wanted["experts", operation]
                exactly = count * rows * model.top_k * size
                assert exactly <= most
                wanted["experts", operation] = (count, exactly)
        return wanted

    model = ModelSizes.from_config(read_config(options["model"])).step_model()
    ModelRunner.run, ModelRunner._agree = run_checked, agree_noted
    InputBuilder.build = build_noted
    serve(
        context,
        options,
        on_built=lambda built: step.update(ledger=built.ports.ledger, groups=built.ports.groups),
    )
    (Path(options["out"]) / f"checked-{context.rank}").write_text(str(len(checked)))


def chaos(context, options):
    """Random arrivals, aborts and a pool that is too small; logs and memory go to a file."""
    pools = []
    kv_pool = engine.assembly.KvPool

    def recorded(*arguments, **sizes):
        pools.append(kv_pool(*arguments, **sizes))
        return pools[-1]

    engine.assembly.KvPool = recorded
    # Four pages: two sequences at most, and often not even those.
    built = build(context, options, num_pages=5, max_num_seqs=3, max_num_batched_tokens=64)
    facts = {"preemptions": 0, "requests": 0, "placeholders": 0}
    if isinstance(built, BuiltFollower):
        built.follower.follow()
    else:
        facts = disturb(built, options, np.random.default_rng((options["seed"], context.rank)))
    totals = built.ports.ledger.totals()
    (Path(options["out"]) / f"chaos-{context.rank}.json").write_text(
        json.dumps({**facts, "digests": totals.digests, "memory": digest_of(*pools)})
    )
    built.close()


def disturb(built, options, generator):
    """Serves random requests, of which some are given up, beside two that outgrow the pool."""
    served, live, number = built.engine, [], 2
    for name in ("0", "1"):
        served.add(request_of(name, range(2, 32), 85))
    for step in range(options["steps"] + 100):
        is_open = step < options["steps"]
        if step == options["steps"]:
            live += ["0", "1"]
        # Engines are busy at different times.
        quiet = (step // 25) % 3 == 0 and generator.random() < 0.9
        if is_open and not quiet and len(live) < 6 and generator.random() < 0.4:
            name = str(number)
            number += 1
            prompt = generator.integers(2, 200, generator.integers(1, 40)).tolist()
            served.add(request_of(name, prompt, int(generator.integers(1, 90))))
            live.append(name)
        if live and (not is_open or generator.random() < 0.02):
            served.abort(live.pop(int(generator.integers(len(live)))))
        if not is_open and not served.has_work():
            served.request_stop()
        _, events = served.step()
        for event in events:
            if getattr(event, "finish_reason", None) and event.request_id in live:
                live.remove(event.request_id)
        served.check_integrity()
        if served.is_stop_agreed:
            break
    assert served.is_stop_agreed
    found = served.statistics()
    return {
        "requests": number,
        "preemptions": found.preemptions,
        "placeholders": found.placeholder_steps,
    }


def request_of(name, prompt, most):
    return EngineRequest(
        request_id=name,
        token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=most, ignore_eos=True),
    )


def digest_of(pool):
    """Digest of all KV memory but scratch, which takes the writes of padding rows."""
    digest = hashlib.sha256()
    pages = pool.pages_at + pool.layout.entry_rows
    windows = pool.windows_at + pool.slot_rows
    parts = [pool.rows[pages : pool.windows_at], pool.rows[windows : pool.scratch_at]]
    for rings in (pool.rings, pool.index_rings):
        parts += [ring[len(ring) // pool.num_slots :] for _, ring in sorted(rings.items())]
    for part in parts:
        digest.update(part.contiguous().numpy().tobytes())
    return digest.hexdigest()


def lose_follower(context, options):
    """One follower dies or stops in the middle; what the others met goes to files."""
    built = build(context, options)
    lost = options["lost"]
    try:
        if isinstance(built, BuiltFollower):
            if context.rank == lost:
                for _ in range(options["calls"]):
                    built.ports.plans.take()
                if options["how"] == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                # Alive, but it takes part in nothing any more, until the world is lost.
                segment = built.ports.plans._segment
                while segment.aborted_by() is None:
                    segment.doorbell.wait(segment.doorbell.load(), 0.05)
                return
            built.follower.follow()
        else:
            submit(built, json.loads(options["prompts"])[:1], options["tokens"])
            for _ in range(2000):
                built.engine.step()
    except (GroupError, EngineFailed) as error:
        (Path(options["out"]) / f"error-{context.rank}").write_text(str(error))
