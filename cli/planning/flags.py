"""The flags of the dry runs: a model by name or directory, and the sizes of the parallel axes.

Both may come from a settings file instead, as the services read it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cli.errors import usage
from runtime.bundled import MODEL, default_model

if TYPE_CHECKING:
    from engine.model.sizing.catalog import Gpu
    from engine.model.sizing.sizes import ModelSizes
    from engine.parallel.layout import ExpertShape, ExpertSlots, Layout

DEFAULT_GPU = "h200"
DEFAULT_MIN_REDUNDANT = 1
_FLAGS = {
    "dp": (0, "engines per replica (default: ep / (cp * attn-tp))"),
    "cp": (1, "ranks that share the tokens of an engine (default 1)"),
    "ep": (1, "ranks that share the experts (default 1)"),
    "enp": (0, "ranks that share a row table (default: one replica)"),
    "attn_tp": (1, "ranks that share the attention heads (default 1)"),
    "min_redundant": (
        DEFAULT_MIN_REDUNDANT,
        f"fewest redundant experts of a layer (default {DEFAULT_MIN_REDUNDANT}, where a deployment "
        "starts; engines on this machine start at 0, see --redundant of `disagg up`)",
    ),
}
# Elements of an expert's row that share a scale in quantised checkpoints.
_SCALE_BLOCK = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the dry runs look at.

    Attributes:
        model: Name or directory, for messages.
        sizes: Of the model.
        gpu: Whose nodes bound cp and attn_tp.
        layout: None when a size cannot be.
        slots: Experts of a layer; None without routed experts, or without a layout.
        errors: One sentence for each violated check.
    """

    model: str
    sizes: ModelSizes
    gpu: Gpu
    layout: Layout | None
    slots: ExpertSlots | None
    errors: tuple[str, ...]


def add_layout_flags(parser: argparse.ArgumentParser) -> None:
    """Model, layout and GPU. What is not given is None, so that --config can tell."""
    parser.add_argument(
        "--model",
        metavar="DIR|NAME",
        help=f"model directory, or v4-flash, v4-pro, v4.1-flash, llama3-70b (default {MODEL})",
    )
    for name, (_, what) in _FLAGS.items():
        parser.add_argument(_flag(name), type=int, metavar="N", help=what)
    parser.add_argument(
        "--gpu", default=DEFAULT_GPU, metavar="NAME", help=f"GPU to run on (default {DEFAULT_GPU})"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings file of a service, TOML or JSON: model and layout as it has them",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def plan_of(options: argparse.Namespace) -> Plan:
    """Model and layout of the flags or of the file they name, and everything wrong with them.

    Args:
        options: Parsed flags; `phase` tells whose settings a file is read as, `path` is `a` where
            rows are gathered instead of dispatched.

    Raises:
        CommandError: No such model or GPU, a config that cannot be read, or a file and flags
            beside it.
    """
    is_of_service = options.config is not None
    options = _with_config(options)
    gpu = _gpu(options)
    sizes = _sizes(options)
    layout, slots, violations = _layout(options, sizes, gpu.ranks_per_node)
    if layout is not None and is_of_service:
        violations += _too_many(layout)
    return Plan(
        model=options.model,
        sizes=sizes,
        gpu=gpu,
        layout=layout,
        slots=slots,
        errors=tuple(f"{check}: {text}" for check, text in violations),
    )


def path_of(options: argparse.Namespace) -> str:
    """How rows reach the experts: the flag, or what the settings file says."""
    return str(getattr(_with_config(options), "path", "auto"))


def _with_config(options: argparse.Namespace) -> argparse.Namespace:
    """The flags with their defaults, or as a settings file gives them, if one is named."""
    defaults: dict[str, object] = {"model": str(default_model()), "path": "auto"}
    defaults |= {name: default for name, (default, _) in _FLAGS.items()}
    given = {
        name: value for name in defaults if (value := getattr(options, name, None)) is not None
    }
    if options.config is None:
        return argparse.Namespace(**{**vars(options), **defaults, **given})
    for name, value in given.items():
        raise usage(
            f"{_flag(name)} {value} with --config {options.config}: the file says it; leave one of "
            "them out"
        )
    from cli.config import load_role
    from engine.parallel.errors import LayoutError
    from engine.parallel.layout import data_parallel, parse_layout
    from serving.settings import EngineProcessSettings

    role = "prefill" if getattr(options, "phase", "") == "prefill" else "decode"
    settings = cast("EngineProcessSettings", load_role(role, options.config).value)
    group = settings.group
    try:
        run = parse_layout(group.layout) if group.layout else data_parallel(group.ranks)
    except LayoutError as error:
        raise usage(f"--config {options.config}: {error}") from error
    layout = run.layout
    sizes = {name: getattr(layout, name) for name in ("dp", "cp", "ep", "enp", "attn_tp")}
    path = "auto" if run.all_to_all else "a"
    changed: dict[str, Any] = {  # Any: as argparse's namespaces
        **vars(options),
        **sizes,
        "model": str(settings.model.path),
        "min_redundant": settings.engine.min_redundant,
        "path": path,
        "config": None,
    }
    return argparse.Namespace(**changed)


def _gpu(options: argparse.Namespace) -> Gpu:
    from engine.model.config import ModelConfigError
    from engine.model.sizing.catalog import read_gpu

    try:
        return read_gpu(options.gpu)
    except ModelConfigError as error:
        raise usage(f"--gpu {options.gpu}: {error}") from error


def _too_many(layout: Layout) -> list[tuple[str, str]]:
    """What the service whose settings they are would refuse; a dry run of flags may be larger."""
    from engine.parallel.layout import check_world

    return check_world(layout)


def _sizes(options: argparse.Namespace) -> ModelSizes:
    from engine.model.config import ModelConfigError
    from engine.model.sizing.catalog import read_config
    from engine.model.sizing.sizes import ModelSizes

    try:
        return ModelSizes.from_config(read_config(options.model))
    except ModelConfigError as error:
        raise usage(f"--model {options.model}: {error}") from error


def _layout(
    options: argparse.Namespace, sizes: ModelSizes, ranks_per_node: int
) -> tuple[Layout | None, ExpertSlots | None, list[tuple[str, str]]]:
    from engine.parallel.errors import LayoutError
    from engine.parallel.layout import (
        AttentionShape,
        ExpertSlots,
        Layout,
        RunLayout,
        check_layout,
        check_rows,
    )

    slots, found = None, []
    all_to_all = getattr(options, "path", "auto") != "a"
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
        elif layout.ep > 1 or not all_to_all:
            given = f"ep {layout.ep}" if layout.ep > 1 else "path a"
            found.append(
                (
                    "EXPERTS",
                    f"{given}, but {options.model} has 0 routed experts to share: leave ep at 1 "
                    "and path out",
                )
            )
    except LayoutError as error:
        return None, None, list(error.violations)
    found += check_layout(
        layout,
        ranks_per_node=ranks_per_node,
        experts=slots,
        engram_rows=sizes.engram.rows if sizes.engram else (),
        attention=AttentionShape(num_heads=sizes.num_heads, num_groups=sizes.num_groups),
    )
    run = RunLayout(layout=layout, all_to_all=all_to_all)
    found += check_rows(run, expert=_expert(sizes))
    return layout, slots, found


def _expert(sizes: ModelSizes) -> ExpertShape | None:
    from engine.parallel.layout import ExpertShape

    if not sizes.num_experts:
        return None
    is_quantised = sizes.expert_bytes > sizes.expert_weight_bytes
    return ExpertShape(
        intermediate=sizes.expert_intermediate,
        quantisation_block=_SCALE_BLOCK if is_quantised else 1,
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
