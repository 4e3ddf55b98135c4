"""Expert weights a rank holds and reads in a decode step, by the number of ranks.

Wide expert parallelism pays when a rank's few experts serve the rows of many ranks: the more ranks,
the fewer bytes each reads per row. A rank reads an expert's weights once in a step if at least one
row comes to it.

Two tables: counted from the choices that the bundled model really makes, and computed for a
released model from its config alone, for choices that are uniform and independent.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.environment import REPOSITORY
from engine.build import build_engine
from engine.config import EngineSettings
from engine.model.sizing.catalog import read_config
from engine.model.sizing.sizes import ModelSizes
from engine.parallel.experts import Placement
from engine.parallel.layout import ExpertSlots
from engine.plan import StepKind
from engine.request import EngineRequest, SamplingParams

IntArray = npt.NDArray[np.int64]

MODEL = REPOSITORY / "models" / "tiny-v4"
RELEASED = "v4.1-flash"
RANKS = (2, 4, 8, 16, 32, 64)
ROWS_PER_RANK = 8
RELEASED_ROWS_PER_RANK = 60
MIN_REDUNDANT = 1


def routed_choices(num_rows: int, *, batch: int = 64, seed: int = 0) -> IntArray:
    """Returns what the bundled model's routers choose in decode steps.

    Args:
        num_rows: rows to collect; a row is one sequence's token in one step.

    Returns:
        [num_layers, num_rows, top_k] int64 logical experts.
    """
    torch.set_num_threads(1)
    settings = EngineSettings(
        num_pages=8 * batch, max_num_seqs=batch, max_num_batched_tokens=max(batch, 512)
    )
    built = build_engine(MODEL, settings)
    rng = random.Random(seed)
    for idx in range(batch):
        prompt = tuple(rng.randrange(3, built.config.vocab_size) for _ in range(16))
        sampling = SamplingParams(max_tokens=150, ignore_eos=True, temperature=1.0, seed=idx)
        built.engine.add(EngineRequest(request_id=str(idx), token_ids=prompt, sampling=sampling))
    layers: list[list[IntArray]] = [[] for _ in range(built.config.num_layers)]
    dispatcher: Any = built.ports.dispatcher
    seen: list[IntArray] = []
    dispatch = dispatcher.dispatch

    def watched(rows: Any, slot_ids: Any, *others: Any) -> Any:
        # With one rank and no replicas, slots are logical experts.
        seen.append(slot_ids.numpy().copy())
        return dispatch(rows, slot_ids, *others)

    dispatcher.dispatch = watched
    collected = 0
    while collected < num_rows:
        seen.clear()
        decision, _ = built.engine.step()
        if decision.step_kind is not StepKind.DECODE:
            continue
        for layer, ids in zip(layers, seen, strict=True):
            layer.append(ids)
        collected += len(seen[0])
    dispatcher.dispatch = dispatch
    return np.stack([np.concatenate(layer)[:num_rows] for layer in layers])


def counted(choices: IntArray, sizes: ModelSizes, ep: int, rows_per_rank: int) -> dict[str, Any]:
    """One line of the table from real choices.

    Args:
        choices: [num_layers, num_rows, top_k]; steps take `ep * rows_per_rank` rows in turn.
        sizes: of the model that chose.
        ep: ranks.
        rows_per_rank: rows of a rank in a step.

    Returns:
        `slots_per_rank`, `held_bytes` (a layer on a rank), `read_bytes` (mean over ranks, layers
        and steps), `read_bytes_highest` (mean over layers and steps of the highest rank, for which
        the others wait), `read_bytes_per_row` (of all ranks, over all rows) and `rows_imbalance`
        (highest over mean rank).
    """
    slots = ExpertSlots(num_logical=sizes.num_experts, ep=ep, min_redundant=MIN_REDUNDANT)
    placement = Placement.initial(slots)
    rows = ep * rows_per_rank
    read, highest, imbalance = [], [], []
    for layer in choices:
        for start in range(0, len(layer) - rows + 1, rows):
            step = layer[start : start + rows].reshape(ep, rows_per_rank, -1)
            used = np.concatenate(
                [placement.slots(ids, rank, 0).ravel() for rank, ids in enumerate(step)]
            )
            by_slot = np.bincount(used, minlength=slots.num_physical)
            by_rank = by_slot.reshape(ep, slots.slots_per_rank)
            hit = (by_rank > 0).sum(1)
            read.append(hit.mean())
            highest.append(hit.max())
            imbalance.append(by_rank.sum(1).max() / by_rank.sum(1).mean())
    mean_read = float(np.mean(read)) * sizes.expert_bytes
    return {
        "ranks": ep,
        "slots_per_rank": slots.slots_per_rank,
        "held_bytes": slots.bytes_per_rank(sizes.expert_bytes),
        "read_bytes": round(mean_read),
        "read_bytes_highest": round(float(np.mean(highest)) * sizes.expert_bytes),
        "read_bytes_per_row": round(mean_read / rows_per_rank),
        "rows_imbalance": round(float(np.mean(imbalance)), 2),
    }


def computed(sizes: ModelSizes, ep: int, rows_per_rank: int) -> dict[str, Any]:
    """One line of the table by arithmetic, for uniform and independent choices.

    A slot of an expert with r replicas is missed by a step of n rows with probability
    (1 - top_k / (experts * r)) ** n.
    """
    slots = ExpertSlots(num_logical=sizes.num_experts, ep=ep, min_redundant=MIN_REDUNDANT)
    counts = Placement.initial(slots).counts
    rows = ep * rows_per_rank
    missed = (1 - sizes.top_k / (sizes.num_experts * counts)) ** rows
    read = float(((1 - missed) * counts).sum()) / ep * sizes.expert_bytes
    return {
        "ranks": ep,
        "slots_per_rank": slots.slots_per_rank,
        "held_bytes": slots.bytes_per_rank(sizes.expert_bytes),
        "read_bytes": round(read),
        "read_bytes_per_row": round(read / rows_per_rank),
    }


def measure(ranks: Sequence[int] = RANKS) -> dict[str, Any]:
    """Returns `counted` and `computed`: lists of lines by ranks, and the rows of a rank in each."""
    model = ModelSizes.from_config(read_config(str(MODEL)))
    released = ModelSizes.from_config(read_config(RELEASED))
    choices = routed_choices(4 * ROWS_PER_RANK * max(ranks))
    return {
        "model": MODEL.name,
        "rows_per_rank": ROWS_PER_RANK,
        "counted": [counted(choices, model, ep, ROWS_PER_RANK) for ep in ranks],
        "released_model": RELEASED,
        "released_rows_per_rank": RELEASED_ROWS_PER_RANK,
        "computed": [computed(released, ep, RELEASED_ROWS_PER_RANK) for ep in ranks],
    }
