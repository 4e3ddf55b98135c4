"""`disagg ledger`: the collectives of one step of a layout, and the bytes they move."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cli.errors import usage
from cli.output import plural, show, show_json, size, table
from cli.planning.flags import add_layout_flags, layout_of, model_of
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from engine.parallel.layout import Layout
    from engine.parallel.ledger import Line, StepShape

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
        default="auto",
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
    sizes = model_of(options)
    layout, _, errors = layout_of(options, sizes, ranks_per_node=None)
    if layout is None or errors:
        raise usage("; ".join(errors))
    shape = _shape(options, layout)
    lines = predict_step(layout, sizes.step_model(), shape)
    if options.json:
        show_json(_as_json(lines, shape))
    else:
        _show(options.model, lines, shape)
    return ExitCode.OK


def _shape(options: argparse.Namespace, layout: Layout) -> StepShape:
    from engine.model.sizing.catalog import read_config
    from engine.parallel.ledger import FLOAT32_WIRE, FP8_WIRE, StepShape
    from engine.parallel.rows.modes import choose_combine, choose_path, padding_mode

    path = choose_path(attn_dp=layout.dp, attn_tp=layout.attn_tp, all_to_all=options.path != "a")
    if options.path == "b" and layout.attn_tp == 1:
        raise usage(
            f"--path b with --attn-tp {layout.attn_tp}: there are no copies to cut; use auto, or "
            "--attn-tp 2"
        )
    if options.fused and options.path == "a":
        raise usage("--fused with --path a: the fused kernel dispatches; use auto or b")
    is_prefill = options.phase == "prefill"
    # As the engine chooses, with equally full attention groups.
    padding = padding_mode([max(options.tokens, 1)] * layout.dp, has_extend=is_prefill)
    is_quantised = bool(read_config(options.model).get("quantization_config"))
    return StepShape(
        tokens=options.tokens,
        is_prefill=is_prefill,
        path=path,
        padding=padding,
        combine=choose_combine(padding, attn_tp=layout.attn_tp),
        is_fused=options.fused,
        wire=FP8_WIRE if is_quantised else FLOAT32_WIRE,
    )


def _as_json(lines: tuple[Line, ...], shape: StepShape) -> dict[str, object]:
    from engine.parallel.ledger import Medium, num_device_collectives

    def count(medium: Medium) -> int:
        return sum(line.count for line in lines if line.medium is medium)

    return {
        "tokens": shape.tokens,
        "phase": "prefill" if shape.is_prefill else "decode",
        "path": shape.path.value,
        "wire": shape.wire.name,
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
    }


def _show(name: str, lines: tuple[Line, ...], shape: StepShape) -> None:
    from engine.parallel.ledger import num_device_collectives

    phase = "prefill" if shape.is_prefill else "decode"
    show(f"{name}: one {phase} step, {plural(shape.tokens, 'row')} an engine, {shape.wire.name}")
    show()
    header = ("channel", "operation", "medium", "times", "bytes")
    rows = [
        (line.channel, line.operation, line.medium.value, str(line.count), size(line.num_bytes))
        for line in lines
    ]
    for text in table([header, *rows], right=(3, 4)):
        show(text)
    show()
    total = size(sum(line.num_bytes for line in lines))
    show(f"{num_device_collectives(lines)} device collectives, {total} a rank and step")
