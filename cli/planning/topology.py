"""`disagg topology`: ranks, groups, expert slots and memory of a layout, before anything runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cli.output import plural, show, show_json, size, table
from cli.planning.flags import Plan, add_layout_flags, plan_of
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from engine.model.sizing.catalog import Gpu
    from engine.model.sizing.memory import MemoryPlan
    from engine.model.sizing.sizes import ModelSizes
    from engine.parallel.layout import Groups, Layout

_FAMILIES = ("dp", "cp", "ep", "enp", "attn_tp")
_CONTEXT_TOKENS = 131_072  # a long prompt, or what the model takes
_SHOWN_GROUPS = 4
# Where the name in the JSON object can be taken for another thing.
_KINDS = {"heads": "attention heads"}


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "topology",
        help="show the ranks, groups, expert slots and memory of a layout",
        description="Dry run of a layout: ranks, groups, expert slots, bytes per rank, and whether "
        "it fits a GPU. Needs no weights. Exit code 2 when the layout cannot exist, 0 also when it "
        "does not fit, which is said. Up to 16,384 ranks; with --config the 512 of a service.",
        epilog="example:  disagg topology --model v4.1-flash --dp 8 --ep 8 --gpu h200",
        allow_abbrev=False,
    )
    add_layout_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from engine.model.sizing.memory import plan_memory

    plan = plan_of(options)
    memory = None
    if plan.layout is not None and not plan.errors:
        memory = plan_memory(plan.sizes, plan.layout, plan.slots, plan.gpu)
    if options.json:
        show_json(_as_json(plan, memory, plan.gpu))
    else:
        _show(plan, memory, plan.gpu)
    return ExitCode.CONFIGURATION if plan.errors else ExitCode.OK


def _as_json(plan: Plan, memory: MemoryPlan | None, gpu: Gpu) -> dict[str, object]:
    sizes, layout, slots = plan.sizes, plan.layout, plan.slots
    found: dict[str, object] = {
        "world_size": layout.world_size if layout else 0,
        "groups": _groups(layout),
        "experts": {
            "logical": slots.num_logical if slots else 0,
            "extra": slots.num_extra if slots else 0,
            "physical": slots.num_physical if slots else 0,
            "local": slots.slots_per_rank if slots else 0,
            "bytes_per_layer_per_rank": slots.bytes_per_rank(sizes.expert_weight_bytes)
            if slots
            else 0,
        },
        "lockstep_block": layout.lockstep_block if layout else 0,
        "kv_bytes_per_token": round(sizes.kv_bytes_per_token),
        "memory_per_rank_bytes": memory.weight_bytes if memory else 0,
        "errors": list(plan.errors),
    }
    if memory is not None:
        found["fit"] = {
            "gpu": gpu.name,
            "memory_bytes": gpu.memory_bytes,
            "usable_bytes": memory.usable_bytes,
            "weights": dict(memory.weights),
            "host_table_bytes": memory.host_table_bytes,
            "state_bytes_per_sequence": memory.state_bytes_per_sequence,
            "fits": memory.is_fitting,
            "binds": memory.binds,
            "free_bytes": memory.free_bytes,
            "context_tokens": _context(sizes),
            "max_sequences": memory.max_sequences(_context(sizes)),
        }
    return found


def _groups(layout: Layout | None) -> dict[str, Groups]:
    """Groups by family; empty lists where the sizes allow no regular grouping."""
    from engine.parallel.layout import Family

    if layout is None or layout.world_size % layout.replica_size:
        return dict.fromkeys(_FAMILIES, ())
    divides = {
        "ep": layout.world_size % layout.ep == 0,
        "enp": layout.world_size % layout.enp == 0,
    }
    return {
        family: layout.groups(Family(family)) if divides.get(family, True) else ()
        for family in _FAMILIES
    }


def _show(plan: Plan, memory: MemoryPlan | None, gpu: Gpu) -> None:
    sizes, layout, slots = plan.sizes, plan.layout, plan.slots
    if layout is not None:
        axes = ", ".join(f"{family} {getattr(layout, family)}" for family in _FAMILIES)
        show(f"{plan.model}: {axes}")
    if layout is None or memory is None:
        show()
        for error in plan.errors:
            show(f"  {error}")
        return
    rows = [
        (
            "ranks",
            f"{layout.world_size}: {plural(layout.num_engines, 'engine')}, "
            f"{plural(layout.num_replicas, 'replica')}",
        )
    ]
    rows += [(f"{family} groups", _listed(groups)) for family, groups in _groups(layout).items()]
    rows.append(("lockstep", f"blocks of {plural(layout.lockstep_block, 'rank')}"))
    if slots is None:
        rows.append(("experts", "none: every layer is dense, on every rank or cut by attention TP"))
    else:
        num_bytes = slots.bytes_per_rank(sizes.expert_weight_bytes)
        rows.append(
            (
                "experts",
                f"{slots.num_logical} + {slots.num_extra} redundant = {slots.num_physical} slots, "
                f"{slots.slots_per_rank} a rank; {num_bytes / 1e6:,.1f} MB a layer and rank",
            )
        )
    kv = f"{sizes.kv_bytes_per_token:,.0f} B a token"
    if memory.state_bytes_per_sequence:
        kv += f", {memory.state_bytes_per_sequence / 1e6:,.2f} MB a sequence"
    rows.append(("KV", kv))
    show()
    for line in table(rows):
        show(line)
    _show_memory(memory, gpu, _context(sizes))


def _context(sizes: ModelSizes) -> int:
    return min(_CONTEXT_TOKENS, sizes.max_context)


def _show_memory(plan: MemoryPlan, gpu: Gpu, context: int) -> None:
    rows = [
        (_KINDS.get(kind, kind.replace("_", " ")), _amount(num_bytes))
        for kind, num_bytes in sorted(plan.weights.items(), key=lambda item: -item[1])
    ]
    rows.append(("weights together", _amount(plan.weight_bytes)))
    rows.append((f"usable of {gpu.name}", _amount(plan.usable_bytes)))
    show()
    for line in table(rows, right=(1,)):
        show(line)
    if plan.host_table_bytes:
        show(f"  row tables: {_amount(plan.host_table_bytes)} of host memory")
    show()
    if plan.is_fitting:
        sequences = plan.max_sequences(context)
        show(
            f"fits: {_amount(plan.free_bytes)} for KV, {plural(sequences, 'sequence')} of "
            f"{context:,} tokens a rank; KV binds"
        )
    else:
        show(
            f"does not fit: {_amount(-plan.free_bytes)} too much before KV; "
            f"{plan.binds.replace('_', ' ')} bind"
        )


def _amount(num_bytes: int) -> str:
    return size(num_bytes) if num_bytes < 1e9 else f"{num_bytes / 1e9:,.2f} GB"


def _listed(groups: Groups) -> str:
    """Some groups, with ranges written short."""
    shown = [_short(group) for group in groups[:_SHOWN_GROUPS]]
    more = len(groups) - len(shown)
    return " ".join(shown) + (f" and {more} more" if more else "")


def _short(group: Sequence[int]) -> str:
    first, last = group[0], group[-1]
    if len(group) == 1:
        return f"{{{first}}}"
    step = group[1] - first
    if len(group) <= 4:
        return "{" + ",".join(map(str, group)) + "}"
    return f"{{{first}..{last}}}" if step == 1 else f"{{{first},{group[1]}..{last}}}"
