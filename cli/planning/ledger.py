"""`disagg ledger`: the collectives of one step of a layout, and the bytes they move."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cli.errors import usage
from cli.output import plural, show, show_json, size, table
from cli.planning.flags import Plan, add_layout_flags, path_of, plan_of
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from engine.parallel.layout import Layout
    from engine.parallel.ledger import Line, StepShape, WireFormat

DEFAULT_TOKENS = 60


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "ledger",
        help="show the collectives of a step and their bytes",
        description="Lists every collective of one step by channel and operation, with the bytes "
        "one rank moves. Needs no weights.",
        epilog="example:  disagg ledger --model v4.1-flash --dp 64 --ep 64 --tokens 60",
        allow_abbrev=False,
    )
    add_layout_flags(parser)
    parser.add_argument(
        "--tokens",
        type=int,
        default=DEFAULT_TOKENS,
        metavar="N",
        help=f"rows of an engine in the step (default {DEFAULT_TOKENS})",
    )
    parser.add_argument(
        "--phase", choices=("decode", "prefill"), default="decode", help="kind of step"
    )
    parser.add_argument(
        "--path",
        choices=("auto", "a", "b"),
        help="how rows reach the experts with attention TP: gather (a) or cut and dispatch (b, "
        "also auto)",
    )
    parser.add_argument(
        "--fused", action="store_true", help="dispatch, experts and combine in one kernel"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from engine.parallel.ledger import predict_step

    if options.tokens < 0:
        raise usage(f"--tokens {options.tokens}: give 0 or more rows")
    plan = plan_of(options)
    if plan.layout is None or plan.errors:
        if not options.json:
            raise usage("; ".join(plan.errors))
        show_json(_as_json((), None, plan.errors))
        return ExitCode.CONFIGURATION
    shape = _shape(options, plan, plan.layout)
    lines = predict_step(plan.layout, plan.sizes.step_model(), shape)
    if options.json:
        show_json(_as_json(lines, shape, ()))
    else:
        _show(plan, lines, shape)
    return ExitCode.OK


def _shape(options: argparse.Namespace, plan: Plan, layout: Layout) -> StepShape:
    from engine.parallel.ledger import StepShape
    from engine.parallel.rows.modes import choose_combine, choose_path, padding_mode

    asked = path_of(options)
    path = choose_path(attn_dp=layout.dp, attn_tp=layout.attn_tp, all_to_all=asked != "a")
    if asked == "b" and layout.attn_tp == 1:
        raise usage(
            f"--path b with --attn-tp {layout.attn_tp}: there are no copies to cut; use auto, or "
            "--attn-tp 2"
        )
    if options.fused and asked == "a":
        raise usage("--fused with --path a: the fused kernel dispatches; use auto or b")
    if options.fused and plan.slots is None:
        raise usage(f"--fused: {plan.model} has no routed experts to dispatch to; leave it out")
    is_prefill = options.phase == "prefill"
    # As the engine chooses, with equally full attention groups.
    padding = padding_mode([max(options.tokens, 1)] * layout.dp, has_extend=is_prefill)
    return StepShape(
        tokens=options.tokens,
        is_prefill=is_prefill,
        path=path,
        padding=padding,
        combine=choose_combine(padding, attn_tp=layout.attn_tp),
        is_fused=options.fused,
        wire=_wire(plan.model),
    )


def _wire(model: str) -> WireFormat:
    """What rows travel as: released models by their weights, others as this engine runs them."""
    from engine.model.sizing.catalog import model_names, read_config
    from engine.parallel.ledger import BF16_WIRE, FLOAT32_WIRE, FP8_WIRE

    if read_config(model).get("quantization_config"):
        return FP8_WIRE
    return BF16_WIRE if model in model_names() else FLOAT32_WIRE


def _as_json(
    lines: tuple[Line, ...], shape: StepShape | None, errors: Sequence[str]
) -> dict[str, object]:
    """The object of `--json`; without a shape only the errors say anything."""
    from engine.parallel.ledger import Medium, num_device_collectives

    def count(medium: Medium) -> int:
        return sum(line.count for line in lines if line.medium is medium)

    return {
        "tokens": shape.tokens if shape else 0,
        "phase": ("prefill" if shape.is_prefill else "decode") if shape else "",
        "path": shape.path.value if shape else "",
        "wire": shape.wire.name if shape else "",
        "lines": [
            {
                "channel": line.channel,
                "operation": line.operation,
                "medium": line.medium.value,
                "count": line.count,
                "bytes": line.num_bytes,
            }
            for line in lines
        ],
        "device_collectives": num_device_collectives(lines),
        "fused_kernels": count(Medium.KERNEL),
        "host_agreements": count(Medium.HOST),
        "one_sided": count(Medium.ONE_SIDED),
        "bytes": sum(line.num_bytes for line in lines),
        "errors": list(errors),
    }


def _show(plan: Plan, lines: tuple[Line, ...], shape: StepShape) -> None:
    from engine.parallel.ledger import num_device_collectives

    phase = "prefill" if shape.is_prefill else "decode"
    dense = "" if plan.slots else "; dense, no experts to dispatch to"
    show(
        f"{plan.model}: one {phase} step, {plural(shape.tokens, 'row')} an engine, "
        f"{shape.wire.name}{dense}"
    )
    show()
    if not lines:
        show("  none: one rank has nobody to talk to")
        return
    header = ("channel", "operation", "medium", "times", "bytes")
    rows = [
        (line.channel, line.operation, line.medium.value, str(line.count), size(line.num_bytes))
        for line in lines
    ]
    for text in table([header, *rows], right=(3, 4)):
        show(text)
    show()
    total = size(sum(line.num_bytes for line in lines))
    once = [line.operation for line in lines if _is_once(line)]
    beside = f" (beside {' and '.join(once)}, once a step)" if once else ""
    show(f"{num_device_collectives(lines)} device collectives{beside}, {total} a rank and step")


def _is_once(line: Line) -> bool:
    """Whether a line of the device does not grow with the layers, and so is not in the count."""
    from engine.parallel.ledger import Medium

    return line.medium is Medium.DEVICE and not line.is_per_layer
