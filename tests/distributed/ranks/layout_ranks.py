"""Rank side of the layout tests: engines of one or several ranks serve golden prompts."""

import json
import os
import signal
from pathlib import Path

import torch

from engine.build import BuiltFollower, build_rank
from engine.config import EngineSettings
from engine.engine import EngineFailed
from engine.parallel.errors import GroupError
from engine.parallel.layout import parse_layout
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


def serve(context, options):
    """Leaders serve the prompts of their engine; tokens and counts of every rank go to a file."""
    built = build(context, options)
    out = Path(options["out"])
    tokens = {}
    if isinstance(built, BuiltFollower):
        built.follower.follow()
    else:
        layout = built.ports.run.layout
        engine = context.rank // layout.engine_size
        prompts = json.loads(options["prompts"])[engine :: layout.num_engines]
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
