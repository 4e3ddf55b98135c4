"""Rank side of the row tests: collectives, and paths A and B, on floats and many counts."""

import json
from pathlib import Path

import numpy as np
import torch

from engine.parallel.errors import GroupError
from engine.parallel.layout import Layout, RunLayout
from engine.parallel.rows import RowSet, TaggedRows, ValueState
from engine.parallel.rows.modes import Combine
from engine.parallel.rows.paths import path_a, path_b
from engine.parallel.rows.transitions import mirror, require_replicated, restore
from engine.parallel.rows.zigzag import split_rows
from engine.parallel.shared_memory import Segment
from engine.parallel.worker import open_ports

HIDDEN = 5
# Rows of each attention group, step by step: uneven, zero on some, zero everywhere, then again.
STEPS = [(3, 3), (5, 0), (0, 1), (0, 0), (7, 2), (1, 6), (0, 0), (4, 4)]


def open_rows(context, layout, *, all_to_all=True):
    """The ports of a rank whose rows are what is tested."""
    return open_ports(
        context,
        hidden=HIDDEN,
        top_k=1,
        max_tokens=4,
        run=RunLayout(layout=layout, all_to_all=all_to_all),
    )


def addend(step, part, tp):
    """Integer values as floats, so that sums are exact in any order."""
    generator = np.random.default_rng((step, part, tp))
    rows = generator.integers(-50, 50, (STEPS[step][part], HIDDEN))
    return torch.from_numpy(rows.astype(np.float32))


def run_paths(context, options):
    """Both paths for every step; results to a file by (path, step)."""
    torch.set_num_threads(1)
    layout = Layout(dp=2, ep=context.num_ranks, attn_tp=context.num_ranks // 2)
    groups = open_rows(context, layout, all_to_all=False).groups
    attn_tp, tp = groups.attn_tp, groups.domain
    place = layout.attention_view.coordinates(context.rank)
    found = {}
    for step, counts in enumerate(STEPS):
        own = TaggedRows(
            values=addend(step, place["dp"], place["tp"]),
            rows=RowSet.own(counts, place["dp"]),
            states={attn_tp.name: ValueState.PART, tp.name: ValueState.UNIQ},
        )
        for combine in Combine:
            result = path_a(
                own,
                attn_tp,
                tp,
                lambda values, rows: values * (context.rank + 1),
                has_extend=step % 2 == 1,
                combine=combine,
            )
            require_replicated(result, attn_tp)
            found[f"a-{combine.value}-{step}"] = result.values.numpy()
        result = path_b(own, attn_tp, lambda values, rows: values * 10)
        require_replicated(result, attn_tp)
        found[f"b-{step}"] = result.values.numpy()
        # The same group as a context group: rows cut in a zigzag and restored.
        lengths = [counts[place["dp"]], 2]
        split = split_rows(lengths, attn_tp.size)
        whole = TaggedRows(
            values=torch.arange(sum(lengths), dtype=torch.float32).unsqueeze(1),
            rows=RowSet.own([sum(lengths)], 0),
            states={attn_tp.name: ValueState.REP},
        )
        back = restore(mirror(whole, attn_tp, split), attn_tp, split)
        assert torch.equal(back.values, whole.values)
    np.savez(Path(options["out"]) / f"paths-{context.rank}.npz", **found)


def run_context(context, options):
    """Rows of a step cut over the context group of a layout and restored, also none at all."""
    torch.set_num_threads(1)
    layout = Layout(dp=context.num_ranks // 2, cp=2, ep=context.num_ranks)
    ports = open_rows(context, layout)
    ledger, cp = ports.ledger, ports.groups.cp
    assert ports.is_leader is (context.rank % 2 == 0)
    assert ports.groups.attn_tp.size == 1
    for step, lengths in enumerate(([9, 4], [0, 1], [0], [16])):
        total = sum(lengths)
        split = split_rows(lengths, layout.cp, shortest_split=3)
        # Each engine has rows of its own.
        values = torch.arange(total * HIDDEN, dtype=torch.float32).reshape(total, HIDDEN)
        values += 1000 * (context.rank // 2)
        whole = TaggedRows(
            values=values, rows=RowSet.own([total], 0), states={cp.name: ValueState.REP}
        )
        back = restore(mirror(whole, cp, split), cp, split)
        assert torch.equal(back.values, values)
        assert len(ledger.open_step()) == step + 1
    counts = {"/".join(key): count for key, count in ledger.totals().counts.items()}
    (Path(options["out"]) / f"context-{context.rank}.json").write_text(json.dumps(counts))


def stop_early(context, options):
    """Rank 1 leaves between two collectives; the error of the others goes to a file."""
    cp = open_rows(context, Layout(dp=1, cp=context.num_ranks)).groups.cp
    cp.all_gather(torch.zeros(1, 1))
    if context.rank == 1:
        return
    try:
        for _ in range(1000):
            cp.all_gather(torch.zeros(1, 1))
    except GroupError as error:
        (Path(options["out"]) / f"error-{context.rank}").write_text(str(error))


def come_late(context, options):
    """Rank 1 stays away from a collective until its peers have given up."""
    cp = open_rows(context, Layout(dp=1, cp=context.num_ranks)).groups.cp
    segment = Segment(context.segment_fd, context.num_ranks)
    if context.rank == 1:
        while segment.aborted_by() is None:
            segment.doorbell.wait(segment.doorbell.load(), 0.05)
        return
    try:
        cp.all_gather(torch.zeros(1, 1))
    except GroupError as error:
        (Path(options["out"]) / f"error-{context.rank}").write_text(str(error))


def collect(context, options):
    """Every collective of one group, also empty ones and gathers in flight; results to a file."""
    torch.set_num_threads(1)
    size = context.num_ranks
    cp = open_rows(context, Layout(dp=1, cp=size)).groups.cp
    found = {}
    for step, (count, width) in enumerate(COLLECTED):
        rows = values(step, context.rank, count * size, width)
        found[f"gather-{step}"] = cp.all_gather(rows)
        found[f"sum-{step}"] = cp.all_reduce(rows)
        found[f"part-{step}"] = cp.reduce_scatter(rows, split_of(step, count * size, size))
        sizes = split_of(step, count * size, size)
        found[f"sized-{step}"] = cp.all_gather_sized(rows[: sizes[context.rank]], sizes)
        ids = torch.arange(count, dtype=torch.int64) + (1 << 40) + context.rank
        found[f"ids-{step}"] = cp.all_gather(ids)
    issued = [cp.start_all_gather(values(n, context.rank, 2, 3)) for n in range(20)]
    found["late-sum"] = cp.all_reduce(torch.ones(1))
    for number in (7, 0, 19, *range(20)):
        if f"late-{number}" not in found:
            found[f"late-{number}"] = issued[number].wait()
    arrays = {name: tensor.numpy() for name, tensor in found.items()}
    np.savez(Path(options["out"]) / f"rows-{context.rank}.npz", **arrays)


# Rows of each member, and numbers per row: small, none, wider than a slot, then small again.
COLLECTED = [(3, 5), (0, 5), (1, 1), (2, 0), (40, 4000), (1, 2)]


def values(step, rank, count, width):
    """Floats whose sum depends on the order in which they are added."""
    generator = np.random.default_rng((step, rank))
    rows = generator.standard_normal((count, width)) * 10.0 ** generator.integers(-3, 4)
    return torch.from_numpy(rows.astype(np.float32))


def split_of(step, count, size):
    """An uneven split of rows over the members."""
    first = (count * (step + 1)) // 7
    return [first, *[0] * (size - 2), count - first] if size > 1 else [count]
