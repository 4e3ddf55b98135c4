"""Rank side of the ledger test: a whole engine in a group, each step against the prediction."""

import json
from pathlib import Path

import torch

from engine.build import build_engine
from engine.config import EngineSettings
from engine.model.sizing.catalog import read_config
from engine.model.sizing.sizes import ModelSizes
from engine.parallel.layout import Layout
from engine.parallel.ledger import FLOAT32_WIRE, StepShape, predict_step
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


def run(context, options):
    """Serves this rank's prompts; totals and rows go to a file."""
    torch.set_num_threads(1)
    directory = Path(options["model"])
    model = ModelSizes.from_config(read_config(str(directory))).step_model()
    layout = Layout(dp=context.num_ranks, ep=context.num_ranks)
    settings = EngineSettings(
        num_pages=64,
        max_num_seqs=4,
        max_num_batched_tokens=96,
        rank=context.rank,
        num_ranks=context.num_ranks,
    )
    built = build_engine(directory, settings, context=context)
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
        rows += check_step(built.ports.ledger, decision, layout, model)
    totals = built.ports.ledger.totals()
    (Path(options["out"]) / f"ledger-{context.rank}.json").write_text(
        json.dumps(
            {
                "tokens": [tokens[f"{context.rank}-{n}"] for n in range(len(prompts))],
                "rows": rows,
                "steps": num_steps,
                "digests": totals.digests,
                "counts": {"/".join(key): count for key, count in totals.counts.items()},
            }
        )
    )
    built.ports.close()
