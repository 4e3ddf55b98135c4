"""Rank side of the table contract suite: rows from a formula, fetched rows to files.

Imported by rank processes and by the suite.
"""

from pathlib import Path

import numpy as np
import torch

from engine.parallel.layout import Layout, RunLayout
from engine.parallel.ports import open_ports
from engine.parallel.store_ports import open_store
from engine.parallel.table_rows import RowTable, TableInputError

TABLES = (
    RowTable(num_rows=1500, width=8, dtype=torch.float32),
    RowTable(num_rows=300, width=64, dtype=torch.float8_e4m3fn, scale_bytes=2),
)
ENTRIES = (3, 2)
SIZES = {"hidden": 4, "top_k": 1, "max_tokens": 2}
STEPS = 12


def rows_of(table, begin, count):
    """Rows whose bytes follow from their number; scales likewise."""
    spec = TABLES[table]
    row = torch.arange(begin, begin + count).unsqueeze(1)
    values = ((row * 7 + torch.arange(spec.width) * 3 + table) % 97).to(spec.dtype)
    scales = None
    if spec.scale_bytes:
        scales = ((row + torch.arange(spec.scale_bytes)) % 251).to(torch.uint8)
    return values, scales


def sources():
    """One source per table."""
    return [lambda begin, count, t=table: rows_of(t, begin, count) for table in range(len(TABLES))]


def ids_of(step, rank):
    """Ids of a step: any owner's, some none; no token at all on some ranks."""
    generator = np.random.default_rng((step, rank))
    num_tokens = int(generator.integers(0, 6))
    return [
        torch.from_numpy(generator.integers(-1, table.num_rows, (num_tokens, entries)))
        for table, entries in zip(TABLES, ENTRIES, strict=True)
    ]


def layout_of(options):
    """The layout of the suite's world."""
    return RunLayout(
        layout=Layout(
            dp=options["dp"],
            ep=options["dp"],
            enp=options["enp"],
            store_ranks=options["store_ranks"],
        )
    )


def run_fetches(context, options):
    """Owners load; ranks with an engine fetch, each as often as it likes, without its peers."""
    torch.set_num_threads(1)
    run = layout_of(options)
    if context.rank >= run.layout.num_engine_ranks:
        store = open_store(context, run=run, tables=TABLES, **SIZES)
        store.tables.load(sources())
        store.ready()
        store.close()
        return
    ports = open_ports(context, run=run, tables=TABLES, **SIZES)
    if run.layout.coordinates(context.rank).enp_rank is not None:
        ports.tables.load(sources())
    ports.ready()
    found = {}
    # Fetches are one-sided: ranks make different numbers of them.
    for step in range(STEPS + context.rank):
        pending = ports.tables.start_fetch(ids_of(step, context.rank))
        for table, part in enumerate(pending):
            rows = part.wait()
            found[f"{step}-{table}-values"] = rows.values.view(torch.uint8).numpy()
            if rows.scales is not None:
                found[f"{step}-{table}-scales"] = rows.scales.numpy()
    totals = ports.ledger.totals()
    found["bytes"] = np.array(totals.num_bytes.get(("table", "fetch"), 0))
    found["count"] = np.array(totals.counts.get(("table", "fetch"), 0))
    try:
        ports.tables.start_fetch([torch.tensor([[1500]]), torch.tensor([[0]])])
    except TableInputError as error:
        found["refusal"] = np.array(str(error))
    np.savez(Path(options["out"]) / f"rows-{context.rank}.npz", **found)
    ports.tables.close()
    ports.close()
