"""The flags of the dry runs: a model by name or directory, and the sizes of the parallel axes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cli.errors import usage
from runtime.bundled import MODEL, default_model

if TYPE_CHECKING:
    from engine.model.sizing.sizes import ModelSizes
    from engine.parallel.layout import ExpertSlots, Layout

DEFAULT_MIN_REDUNDANT = 1


def add_layout_flags(parser: argparse.ArgumentParser) -> None:
    """Model and layout."""
    parser.add_argument(
        "--model",
        default=str(default_model()),
        metavar="DIR|NAME",
        help=f"model directory, or v4-flash, v4-pro, v4.1-flash, llama3-70b (default {MODEL})",
    )
    for flag, default, what in (
        ("--dp", 0, "engines per replica (default: ep / (cp * attn-tp))"),
        ("--cp", 1, "ranks that share the tokens of an engine (default 1)"),
        ("--ep", 1, "ranks that share the experts (default 1)"),
        ("--enp", 0, "ranks that share a row table (default: one replica)"),
        ("--attn-tp", 1, "ranks that share the attention heads (default 1)"),
        (
            "--min-redundant",
            DEFAULT_MIN_REDUNDANT,
            f"fewest redundant experts of a layer (default {DEFAULT_MIN_REDUNDANT})",
        ),
    ):
        parser.add_argument(flag, type=int, default=default, metavar="N", help=what)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def model_of(options: argparse.Namespace) -> ModelSizes:
    """Sizes of the model of the flags.

    Raises:
        CommandError: no such model, or a config that cannot be read.
    """
    from engine.model.config import ModelConfigError
    from engine.model.sizing.catalog import read_config
    from engine.model.sizing.sizes import ModelSizes

    try:
        return ModelSizes.from_config(read_config(options.model))
    except ModelConfigError as error:
        raise usage(f"--model {options.model}: {error}") from error


def layout_of(
    options: argparse.Namespace, sizes: ModelSizes, *, ranks_per_node: int | None
) -> tuple[Layout | None, ExpertSlots | None, list[str]]:
    """Layout and slots of the flags, and everything that is wrong with them.

    Returns:
        The layout (None when a size cannot be), slots of a layer (None without routed experts),
        and one sentence for each violated check.
    """
    from engine.parallel.errors import LayoutError
    from engine.parallel.layout import AttentionShape, ExpertSlots, Layout, check_layout

    slots, found = None, []
    try:
        layout = Layout(
            dp=options.dp,
            cp=options.cp,
            ep=options.ep,
            enp=options.enp,
            attn_tp=options.attn_tp,
        )
        if sizes.num_experts:
            slots = ExpertSlots(
                num_logical=sizes.num_experts, ep=layout.ep, min_redundant=options.min_redundant
            )
        elif layout.ep > 1:
            found.append(
                (
                    "EXPERTS",
                    f"ep {layout.ep}, but {options.model} has 0 routed experts to share: leave ep "
                    "at 1",
                )
            )
    except LayoutError as error:
        return None, None, [f"{check}: {text}" for check, text in error.violations]
    found += check_layout(
        layout,
        ranks_per_node=ranks_per_node,
        experts=slots,
        engram_rows=sizes.engram.rows if sizes.engram else (),
        attention=AttentionShape(num_heads=sizes.num_heads, num_groups=sizes.num_groups),
    )
    return layout, slots, [f"{check}: {text}" for check, text in found]
