"""Rank side of the ledger test: a whole engine in a group, each step against the prediction."""

import json
from pathlib import Path

import numpy as np
import torch

from engine.build import build_engine
from engine.config import EngineSettings
from engine.model.sizing.catalog import read_config
from engine.model.sizing.sizes import ModelSizes
from engine.parallel.experts.exchange import sum_over_ranks
from engine.parallel.layout import Layout
from engine.parallel.ledger import FLOAT32_WIRE, StepShape, predict_step
from engine.parallel.worker import open_ports
from engine.plan import StepKind
from engine.request import EngineRequest, SamplingParams


def check_step(ledger, decision, layout, model):
    """Compares the open step with the prediction; returns the rows this rank sent."""
    entries = ledger.open_step()
    found = {}
    for entry in entries:
        key = f"{entry.channel}/{entry.operation}"
        count, num_bytes = found.get(key, (0, 0))
        found[key] = (count + 1, num_bytes + entry.num_bytes)
    if decision.step_kind is StepKind.NONE:
        assert list(found) == ["vote/all_reduce"], found
        return 0
    per_row = FLOAT32_WIRE.combine_bytes(model.hidden) * model.top_k * model.num_moe_layers
    rows, rest = divmod(found["experts/combine"][1], per_row)
    assert rest == 0
    shape = StepShape(
        tokens=rows, is_prefill=decision.step_kind is StepKind.PREFILL, wire=FLOAT32_WIRE
    )
    predicted = {
        f"{line.channel}/{line.operation}": (line.count, line.num_bytes)
        for line in predict_step(layout, model, shape)
    }
    assert found == predicted, (found, predicted)
    return rows


def proportional_bytes():
    """Memory of this process, shared pages divided among those who share them."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("the kernel does not say")


def run(context, options):
    """Serves this rank's prompts; totals and rows go to a file."""
    torch.set_num_threads(1)
    directory = Path(options["model"])
    model = ModelSizes.from_config(read_config(str(directory))).step_model()
    layout = Layout(dp=context.num_ranks, ep=context.num_ranks)
    settings = EngineSettings(
        num_pages=64,
        max_num_seqs=4,
        max_num_batched_tokens=options.get("max_num_batched_tokens", 96),
        late_scheduling=options.get("late_scheduling", False),
        rank=context.rank,
        num_ranks=context.num_ranks,
    )
    interval = options.get("rebalance_interval_steps")
    built = build_engine(
        directory,
        settings,
        context=context,
        min_redundant=options.get("min_redundant", 0),
        rebalance_interval_steps=interval,
    )
    prompts = json.loads(options["prompts"])[context.rank]
    for number, prompt in enumerate(prompts):
        built.engine.add(
            EngineRequest(
                request_id=f"{context.rank}-{number}",
                token_ids=tuple(prompt),
                sampling=SamplingParams(max_tokens=options["steps"], ignore_eos=True),
            )
        )
    tokens = {}
    rows = num_steps = 0
    for _ in range(2000):
        if not built.engine.has_work():
            built.engine.request_stop()
        decision, events = built.engine.step()
        for event in events:
            if hasattr(event, "token_id"):
                tokens.setdefault(event.request_id, []).append(event.token_id)
        if built.engine.is_stop_agreed:
            break
        num_steps += decision.step_kind is not StepKind.NONE
        # Moving experts takes collectives of its own; with late scheduling a step's collectives
        # go on when the next one is open.
        is_moving = interval is not None and num_steps and not num_steps % interval
        if not settings.late_scheduling and not is_moving:
            rows += check_step(built.ports.ledger, decision, layout, model)
    totals = built.ports.ledger.totals()
    (Path(options["out"]) / f"ledger-{context.rank}.json").write_text(
        json.dumps(
            {
                "tokens": [tokens[f"{context.rank}-{n}"] for n in range(len(prompts))],
                "rows": rows,
                "steps": num_steps,
                "pss_bytes": proportional_bytes(),
                "digests": totals.digests,
                "counts": {"/".join(key): count for key, count in totals.counts.items()},
            }
        )
    )
    built.ports.close()


def chaos(context, options):
    """Random arrivals, aborts and a pool that is too small; every step against the prediction.

    With late scheduling a step's collectives go on when the next one is open, so that only the
    whole log can be compared.
    """
    torch.set_num_threads(1)
    directory = Path(options["model"])
    sizes = ModelSizes.from_config(read_config(str(directory)))
    model = sizes.step_model()
    layout = Layout(dp=context.num_ranks, ep=context.num_ranks)
    settings = EngineSettings(
        # Six pages: three or four sequences fit when they are young, two when they are old.
        num_pages=7,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        late_scheduling=options["late_scheduling"],
        rank=context.rank,
        num_ranks=context.num_ranks,
    )
    built = build_engine(directory, settings, context=context)
    engine = built.engine
    generator = np.random.default_rng((options["seed"], context.rank))
    live = []
    number = rows = busy = 0
    for step in range(options["steps"] + 100):
        is_open = step < options["steps"]
        # Ranks are busy at different times: a quarter of the time nothing arrives at one of them.
        quiet = (step // 100) % 4 == context.rank % 4
        if is_open and not quiet and len(live) < 6 and generator.random() < 0.3:
            name = f"{context.rank}-{number}"
            number += 1
            engine.add(
                EngineRequest(
                    request_id=name,
                    token_ids=tuple(generator.integers(2, 200, generator.integers(1, 40)).tolist()),
                    # Most grow to three or four pages.
                    sampling=SamplingParams(
                        max_tokens=min(69, int(generator.integers(1, 140))), ignore_eos=True
                    ),
                )
            )
            live.append(name)
        if live and (not is_open or generator.random() < 0.01):
            engine.abort(live.pop(int(generator.integers(len(live)))))
        if not is_open and not engine.has_work():
            engine.request_stop()
        decision, events = engine.step()
        for event in events:
            if getattr(event, "finish_reason", None) and event.request_id in live:
                live.remove(event.request_id)
        engine.check_integrity()
        if engine.is_stop_agreed:
            break
        if not settings.late_scheduling:
            rows += check_step(built.ports.ledger, decision, layout, model)
        busy += decision.step_kind is not StepKind.NONE
    statistics = engine.statistics()
    if not settings.late_scheduling:
        # Every row that travelled is one of a step that was not a placeholder.
        assert rows == statistics.computed_tokens
    totals = built.ports.ledger.totals()
    (Path(options["out"]) / f"chaos-{context.rank}.json").write_text(
        json.dumps(
            {
                "digests": totals.digests,
                "counts": {"/".join(key): count for key, count in totals.counts.items()},
                "stopped": engine.is_stop_agreed,
                "requests": number,
                "busy": busy,
                "placeholders": statistics.placeholder_steps,
                "preemptions": statistics.preemptions,
            }
        )
    )
    built.ports.close()


def sums(context, options):
    """Sums random counts over the ranks, with a port that takes few rows at a time."""
    sizes = {"hidden": 6, "top_k": 2, "max_tokens": 8}
    ports = open_ports(context, **sizes)
    mine = np.random.default_rng(context.rank).integers(-(2**60), 2**60, (7, 3, 11))
    total = sum_over_ranks(ports.dispatcher, mine, **sizes)
    np.save(Path(options["out"]) / f"sum-{context.rank}.npy", total)
    ports.close()
