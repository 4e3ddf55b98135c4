"""Rank side of the dispatch contract suite: cases from a seed, results to files.

Imported by rank processes and by the suite, which computes the same cases in one rank.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from engine.parallel.dispatch import DispatchHandle
from engine.parallel.dispatch_format import DispatchFormat, formatted
from engine.parallel.errors import DispatchInputError
from engine.parallel.ports import open_ports

HIDDEN = 24
TOP_K = 3
MAX_TOKENS = 16
SLOTS_PER_RANK = 4


@dataclass(frozen=True)
class Case:
    """Rows of each rank (cycled over the ranks) and how their ids are drawn."""

    name: str
    counts: tuple[int, ...]
    ids: str
    seed: int = 0


def _random_cases(count):
    generator = np.random.default_rng(1234)
    for number in range(count):
        counts = generator.integers(0, MAX_TOKENS + 1, size=8)
        counts[generator.random(8) < 0.3] = 0
        ids = ("random", "holes", "skewed")[number % 3]
        yield Case(f"random-{number}", tuple(counts.tolist()), ids, seed=number + 100)


CASES = (
    Case("one row each", (1,), "random"),
    Case("full", (MAX_TOKENS,), "random"),
    Case("uneven", (5, 1, 16, 2, 7), "random"),
    Case("zero on some ranks", (0, 6, 0, 3), "random"),
    Case("zero everywhere", (0,), "random"),
    Case("after zero everywhere", (3,), "random"),
    Case("all to one expert", (9, 4), "one"),
    Case("all to the last rank", (8,), "last"),
    Case("some ids are none", (7, 5), "holes"),
    Case("all ids are none", (6,), "none"),
    Case("same expert in all choices", (4,), "same"),
    *_random_cases(24),
)


def case_inputs(case, rank, num_ranks):
    """Rows [T, H], slot ids [T, K] and weights [T, K] of one rank."""
    num_tokens = case.counts[rank % len(case.counts)]
    num_slots = SLOTS_PER_RANK * num_ranks
    generator = np.random.default_rng((case.seed, rank))
    rows = generator.standard_normal((num_tokens, HIDDEN)).astype(np.float32)
    weights = generator.random((num_tokens, TOP_K)).astype(np.float32)
    ids = generator.integers(0, num_slots, (num_tokens, TOP_K))
    if case.ids == "holes":
        ids[generator.random(ids.shape) < 0.4] = -1
    elif case.ids == "none":
        ids[:] = -1
    elif case.ids == "one":
        ids[:] = 1
    elif case.ids == "last":
        ids[:] = num_slots - 1 - generator.integers(0, SLOTS_PER_RANK, ids.shape)
    elif case.ids == "same":
        ids[:] = ids[:, :1]
    elif case.ids == "skewed":
        ids[generator.random(ids.shape) < 0.8] = num_slots // 2
    return torch.from_numpy(rows), torch.from_numpy(ids), torch.from_numpy(weights)


def experts(dispatched, first_slot):
    """Outputs that tell rows, slots and weights apart, by products alone: bit-exact."""
    factors = (dispatched.local_slots + first_slot + 1).to(torch.float32)
    return dispatched.rows * factors[:, None] * dispatched.row_weights[:, None]


def run_case(dispatcher, inputs, slots_per_rank):
    """One dispatch, the experts, one combine; everything copied out as arrays."""
    dispatched = dispatcher.dispatch(*inputs, slots_per_rank)
    outputs = experts(dispatched, dispatcher.rank * slots_per_rank)
    combined = dispatcher.combine(outputs, dispatched.handle)
    return {
        "rows": dispatched.rows.numpy().copy(),
        "row_weights": dispatched.row_weights.numpy().copy(),
        "local_slots": dispatched.local_slots.numpy().copy(),
        "combined": combined.numpy().copy(),
    }


def run_cases(context, options):
    """Runs every case in order on this rank."""
    ports = open_ports(context, hidden=HIDDEN, top_k=TOP_K, max_tokens=MAX_TOKENS)
    for number, case in enumerate(CASES):
        inputs = case_inputs(case, context.rank, context.num_ranks)
        results = run_case(ports.dispatcher, inputs, SLOTS_PER_RANK)
        np.savez(Path(options["out"]) / f"{number}-{context.rank}.npz", **results)
    ports.close()


def run_rounded(context, options):
    """Every case in order, with rows and results rounded on the way."""
    form = DispatchFormat(options["form"])
    ports = open_ports(
        context,
        hidden=form.row_width(HIDDEN),
        top_k=TOP_K,
        max_tokens=MAX_TOKENS,
        result_hidden=form.result_width(HIDDEN),
    )
    dispatcher = formatted(ports.dispatcher, form, HIDDEN)
    for number, case in enumerate(CASES):
        inputs = case_inputs(case, context.rank, context.num_ranks)
        results = run_case(dispatcher, inputs, SLOTS_PER_RANK)
        np.savez(Path(options["out"]) / f"{number}-{context.rank}.npz", **results)
    ports.close()


def _refused(call):
    try:
        call()
    except DispatchInputError as error:
        return str(error)
    return "was not refused"


def bad_inputs(context, options):
    """Bad calls on rank 0 between good ones of all ranks: refused before anything is sent."""
    ports = open_ports(context, hidden=HIDDEN, top_k=TOP_K, max_tokens=MAX_TOKENS)
    dispatcher = ports.dispatcher
    inputs = rows, ids, weights = case_inputs(CASES[1], context.rank, context.num_ranks)
    messages = {}
    if context.rank == 0:
        num_slots = SLOTS_PER_RANK * context.num_ranks
        long = [torch.cat([tensor, tensor[:1]]) for tensor in inputs]
        above, below = ids.clone(), ids.clone()
        above[3, 1], below[0, 0] = num_slots, -2
        for name, arguments in {
            "too many rows": (*long, SLOTS_PER_RANK),
            "narrow rows": (rows[:, 1:], ids, weights, SLOTS_PER_RANK),
            "double rows": (rows.double(), ids, weights, SLOTS_PER_RANK),
            "int32 ids": (rows, ids.int(), weights, SLOTS_PER_RANK),
            "fewer weights": (rows, ids, weights[1:], SLOTS_PER_RANK),
            "id too high": (rows, above, weights, SLOTS_PER_RANK),
            "id too low": (rows, below, weights, SLOTS_PER_RANK),
            "no slots": (rows, ids, weights, 0),
        }.items():
            messages[name] = _refused(lambda a=arguments: dispatcher.dispatch(*a))
    dispatched = dispatcher.dispatch(*inputs, SLOTS_PER_RANK)
    outputs = experts(dispatched, context.rank * SLOTS_PER_RANK)
    if context.rank == 0:
        handle = dispatched.handle
        other = DispatchHandle(handle.entries, handle.num_tokens, handle.holes, 99)
        messages["second dispatch"] = _refused(lambda: dispatcher.dispatch(*inputs, SLOTS_PER_RANK))
        messages["fewer outputs"] = _refused(lambda: dispatcher.combine(outputs[1:], handle))
        messages["other handle"] = _refused(lambda: dispatcher.combine(outputs, other))
    combined = dispatcher.combine(outputs, dispatched.handle).clone()
    if context.rank == 0:
        messages["second combine"] = _refused(
            lambda: dispatcher.combine(outputs, dispatched.handle)
        )
        names = sorted(messages)
        np.savez(Path(options["out"]) / "messages.npz", **{name: messages[name] for name in names})
    expected = rows[:, None] * (ids + 1).to(torch.float32)[..., None] * weights[..., None]
    if not torch.equal(combined, expected):
        raise AssertionError("a refused call disturbed the next one")
    ports.close()


def vector_d1(context, options):
    """T-D1: rows hold the token's value, experts multiply by (expert + 1) and the weight."""
    values, ids, weights = (
        np.load(Path(options["out"]) / f"d1-{part}-{context.rank}.npy")
        for part in ("values", "ids", "weights")
    )
    ports = open_ports(context, hidden=1, top_k=2, max_tokens=4)
    inputs = tuple(torch.from_numpy(array) for array in (values, ids, weights))
    results = run_case(ports.dispatcher, inputs, 2)
    np.savez(Path(options["out"]) / f"d1-result-{context.rank}.npz", **results)
    ports.close()
