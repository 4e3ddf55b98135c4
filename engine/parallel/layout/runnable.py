"""Whether an engine can run a layout, beyond that the layout can exist. Pure."""

from __future__ import annotations

from engine.parallel.errors import LayoutError
from engine.parallel.layout.checks import AttentionShape, Violations, check_layout
from engine.parallel.layout.notation import RunLayout
from engine.parallel.layout.ranks import Layout
from engine.parallel.layout.slots import ExpertSlots
from engine.parallel.layout.tensor_parallel import ExpertShape
from engine.parallel.lockstep import EngineKind

MAX_WORLD = 512


def check_run(
    run: RunLayout,
    *,
    kind: EngineKind = EngineKind.NORMAL,
    attention: AttentionShape | None = None,
    expert: ExpertShape | None = None,
    slots: ExpertSlots | None = None,
) -> Violations:
    """Finds everything wrong: (check, sentence) pairs, empty when engines can run it.

    Args:
        run: the layout.
        kind: of the engines.
        attention, expert, slots: of the model; checks about what is not given are left out.
    """
    layout = run.layout
    found = check_layout(layout, kind=kind, attention=attention, experts=slots)
    if layout.store_ranks:
        found.append(
            ("ROLE", f"store_ranks {layout.store_ranks}: ranks without an engine are for tables")
        )
    return found + check_world(layout) + check_rows(run, expert=expert)


def check_world(layout: Layout) -> Violations:
    """Whether engines run so many ranks as one group; a layout itself may have more."""
    if layout.world_size <= MAX_WORLD:
        return []
    return [("SIZE", f"{layout.world_size} ranks are more than {MAX_WORLD}: split the group")]


def check_rows(run: RunLayout, *, expert: ExpertShape | None = None) -> Violations:
    """Whether rows can get to the experts: who cuts them, and how experts are cut."""
    layout, found = run.layout, []
    if layout.cp > 1 and (layout.attn_tp > 1 or not run.all_to_all):
        other = f"attn_tp {layout.attn_tp}" if layout.attn_tp > 1 else "path a"
        found.append(
            (
                "PATH",
                f"cp {layout.cp} and {other} both decide which rows a rank sends to the experts: "
                f"set cp to 1, or use attn_tp 1 without path a",
            )
        )
    width = layout.replica_size // layout.ep if layout.ep <= layout.replica_size else 1
    if not run.all_to_all and expert is not None and not expert.keeps_blocks_whole(width):
        found.append(
            (
                "MOE_TP",
                f"path a with ep {layout.ep} cuts each expert's {expert.intermediate} inner "
                f"columns over {width} ranks, not at borders of {expert.quantisation_block}: set "
                f"ep to {layout.replica_size}",
            )
        )
    return found


def require_runnable(
    run: RunLayout,
    *,
    kind: EngineKind = EngineKind.NORMAL,
    attention: AttentionShape | None = None,
    expert: ExpertShape | None = None,
    slots: ExpertSlots | None = None,
) -> None:
    """Runs `check_run` with the same arguments.

    Raises:
        LayoutError: with every violated check.
    """
    found = check_run(run, kind=kind, attention=attention, expert=expert, slots=slots)
    if found:
        raise LayoutError(found)
