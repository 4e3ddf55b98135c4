"""Rank side of the row tests: paths A and B over gloo, on floats and many counts."""

import json
from pathlib import Path

import numpy as np
import torch

from engine.parallel.errors import GroupError
from engine.parallel.layout import Channel, Layout, TensorFamily, TensorLayout, Transport
from engine.parallel.ledger import Ledger
from engine.parallel.rows import RowSet, TaggedRows, ValueState
from engine.parallel.rows.gloo_group import GlooRowGroup, open_row_groups
from engine.parallel.rows.modes import Combine
from engine.parallel.rows.paths import path_a, path_b
from engine.parallel.rows.transitions import mirror, require_replicated, restore
from engine.parallel.rows.zigzag import split_rows
from engine.parallel.shared_memory import Progress, Segment

HIDDEN = 5
# Rows of each attention group, step by step: uneven, zero on some, zero everywhere, then again.
STEPS = [(3, 3), (5, 0), (0, 1), (0, 0), (7, 2), (1, 6), (0, 0), (4, 4)]


def open_groups(context, layout):
    """The two groups of a rank, in the order in which all ranks open theirs."""
    progress = Progress(step_kind="start")
    return [
        GlooRowGroup(
            context,
            Channel(
                family=family.value,
                purpose="rows",
                members=next(g for g in layout.groups(family) if context.rank in g),
                transport=Transport.DEVICE,
            ),
            progress,
        )
        for family in (TensorFamily.ATTN_TP, TensorFamily.TP)
    ]


def addend(step, part, tp):
    """Integer values as floats, so that sums are exact in any order."""
    generator = np.random.default_rng((step, part, tp))
    rows = generator.integers(-50, 50, (STEPS[step][part], HIDDEN))
    return torch.from_numpy(rows.astype(np.float32))


def run_paths(context, options):
    """Both paths for every step; results to a file by (path, step)."""
    torch.set_num_threads(1)
    layout = TensorLayout(tp=context.num_ranks, dp=2)
    attn_tp, tp = open_groups(context, layout)
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
    """Channels from a layout: rows cut over cp, reduced over attention tp, and restored."""
    torch.set_num_threads(1)
    layout = Layout(dp=1, cp=2, attn_tp=context.num_ranks // 2)
    place = layout.coordinates(context.rank)
    ledger = Ledger()
    groups = open_row_groups(
        context, layout.channels(context.rank), Progress(step_kind="start"), ledger
    )
    assert sorted(groups) == ["attention", "sequence"]
    cp, attn_tp = groups["sequence"], groups["attention"]
    for step, lengths in enumerate(([9, 4], [0, 1], [0], [16])):
        total = sum(lengths)
        split = split_rows(lengths, layout.cp, shortest_split=3)
        values = torch.arange(total * HIDDEN, dtype=torch.float32).reshape(total, HIDDEN)
        whole = TaggedRows(
            values=values,
            rows=RowSet.own([total], 0),
            states={cp.name: ValueState.REP, attn_tp.name: ValueState.REP},
        )
        part = mirror(whole, cp, split)
        # Each rank of the inner group holds an addend of its rows.
        width = attn_tp.size
        weight = 2 * (place.tp + 1) / (width * (width + 1))
        share = part.with_values(part.values * weight * 3, **{attn_tp.name: ValueState.PART})
        summed = attn_tp.all_reduce(share.values) if width > 1 else share.values
        back = restore(share.with_values(summed, **{attn_tp.name: ValueState.REP}), cp, split)
        torch.testing.assert_close(back.values, values * 3)
        assert len(ledger.open_step()) == (step + 1) * (2 if width > 1 else 1)
    counts = {"/".join(key): count for key, count in ledger.totals().counts.items()}
    (Path(options["out"]) / f"context-{context.rank}.json").write_text(json.dumps(counts))


def stop_early(context, options):
    """Rank 1 leaves between two collectives; the error of the others goes to a file."""
    layout = TensorLayout(tp=context.num_ranks)
    _, tp = open_groups(context, layout)
    tp.all_gather(torch.zeros(1, 1))
    if context.rank == 1:
        return
    try:
        for _ in range(1000):
            tp.all_gather(torch.zeros(1, 1))
    except GroupError as error:
        (Path(options["out"]) / f"error-{context.rank}").write_text(str(error))


def come_late(context, options):
    """Rank 1 stays away from a collective until its peers have given up."""
    layout = TensorLayout(tp=context.num_ranks)
    _, tp = open_groups(context, layout)
    segment = Segment(context.segment_fd, context.num_ranks)
    if context.rank == 1:
        while segment.aborted_by() is None:
            segment.doorbell.wait(segment.doorbell.load(), 0.05)
        return
    try:
        tp.all_gather(torch.zeros(1, 1))
    except GroupError as error:
        (Path(options["out"]) / f"error-{context.rank}").write_text(str(error))
