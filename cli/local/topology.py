"""Flags that say which system to start, shared by `up`, `demo` and `verify`.

Ranks without a layout are engines of their own that share the experts. A layout is written
`dp=4,cp=2,ep=8` or `dp=4,ep=8,attn_tp=2,path=b`; what cannot be run is refused with a sentence,
never silently changed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cli.errors import usage
from runtime.bundled import MODEL, default_model
from runtime.masking import mask_url

if TYPE_CHECKING:
    from engine.config import EngineRole
    from engine.parallel.layout import RunLayout

DEFAULT_PREFILL_RANKS = 1
DEFAULT_DECODE_RANKS = 2
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Which system to start.

    Attributes:
        prefill_ranks, decode_ranks: Rank processes.
        prefill_layout, decode_layout: As for `--layout`; empty: an engine on every rank.
        store_url: The store to use; None starts a private one.
        kv_quantisers: auto, on or off.
        redundant: Fewest redundant experts of a layer, on both sides.
        rebalance_after: Steps after which experts move by their load, again and again; None never.
        http_port: Port of the HTTP face, 0 for a free one; None: without it.
        has_traces: Whether a collector keeps the spans of all requests.
    """

    model: Path
    prefill_ranks: int = DEFAULT_PREFILL_RANKS
    decode_ranks: int = DEFAULT_DECODE_RANKS
    prefill_layout: str = ""
    decode_layout: str = ""
    store_url: str | None = None
    kv_quantisers: str = "auto"
    redundant: int = 0
    rebalance_after: int | None = None
    http_port: int | None = None
    has_traces: bool = False

    def __str__(self) -> str:
        """Names it in one phrase."""
        name = self.model.resolve().name
        text = f"{name}, {self.prefill_ranks} prefill + {self.decode_ranks} decode ranks"
        layouts = [
            f"{side.name} {side.layout}" for side in (self.prefill, self.decode) if side.layout
        ]
        return f"{text} ({', '.join(layouts)})" if layouts else text

    @property
    def prefill(self) -> Side:
        """The prefill side."""
        return Side(name="prefill", ranks=self.prefill_ranks, layout=self.prefill_layout)

    @property
    def decode(self) -> Side:
        """The decode side."""
        return Side(name="decode", ranks=self.decode_ranks, layout=self.decode_layout)

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both sides."""
        return self.prefill, self.decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One group of ranks of a system."""

    name: str
    ranks: int
    layout: str

    @property
    def engines(self) -> int:
        """Engines, each a member of the cluster."""
        if not self.layout:
            return self.ranks
        from engine.parallel.layout import parse_layout

        return parse_layout(self.layout).layout.num_engines

    @property
    def flags(self) -> tuple[str, str]:
        """What its service is told."""
        return ("--layout", self.layout) if self.layout else ("--ranks", str(self.ranks))


def add_rank_flags(parser: argparse.ArgumentParser) -> None:
    """Ranks and layouts of both sides."""
    for side, count, example in (
        ("prefill", DEFAULT_PREFILL_RANKS, "dp=2,cp=2,ep=4"),
        ("decode", DEFAULT_DECODE_RANKS, "dp=2,ep=4,attn_tp=2,path=b"),
    ):
        parser.add_argument(
            f"--{side}-ranks", type=_ranks, metavar="N", help=f"{side} ranks (default {count})"
        )
        parser.add_argument(
            f"--{side}-layout",
            metavar="LAYOUT",
            help=f"layout of the {side} ranks, e.g. {example}; instead of --{side}-ranks",
        )
    parser.add_argument(
        "--redundant",
        type=int,
        default=0,
        metavar="M",
        help="redundant experts of a layer, on both sides (default 0: they cost memory and win "
        "little on one machine; the dry runs ask about a deployment, which starts at 1)",
    )
    parser.add_argument(
        "--draft", choices=("on", "off"), default="off", help="draft tokens (default off)"
    )


def add_system_flags(parser: argparse.ArgumentParser) -> None:
    """Everything `disagg up` can be told about the system."""
    parser.add_argument(
        "--model",
        type=Path,
        default=default_model(),
        metavar="DIR",
        help=f"model directory (default {MODEL})",
    )
    add_rank_flags(parser)
    parser.add_argument("--store", metavar="URL", help="KV store to use (default: a private one)")
    parser.add_argument(
        "--http", type=int, metavar="PORT", help="port of the HTTP face, 0 for a free one"
    )
    parser.add_argument(
        "--trace", action="store_true", help="record every request, for `disagg trace`"
    )


def topology_of(options: argparse.Namespace, *, model: Path | None = None) -> Topology:
    """The system of the flags.

    Raises:
        CommandError: The flags contradict each other, or ask for what there is not yet.
    """
    http_port: int | None = getattr(options, "http", None)
    if http_port is not None and not 0 <= http_port <= _MAX_PORT:
        raise usage(f"--http {http_port}: give a port, 1 to {_MAX_PORT}, or 0 for a free one")
    store_url: str | None = getattr(options, "store", None)
    if store_url is not None and store_url.startswith("memory:"):
        raise usage(
            f"--store {mask_url(store_url)}: each process would have a memory of its own; leave "
            "--store out for a private store, or give the URL of one, e.g. redis://127.0.0.1:6379"
        )
    check_extras(options)
    directory = model or options.model
    if not (directory / "config.json").is_file():
        raise usage(
            f"--model {directory}: there is no config.json; give the directory of a model, or run "
            f"where {MODEL} is"
        )
    prefill_ranks, prefill_layout = _side(options, "prefill", directory, DEFAULT_PREFILL_RANKS)
    decode_ranks, decode_layout = _side(options, "decode", directory, DEFAULT_DECODE_RANKS)
    topology = Topology(
        model=directory,
        prefill_ranks=prefill_ranks,
        decode_ranks=decode_ranks,
        prefill_layout=prefill_layout,
        decode_layout=decode_layout,
        store_url=store_url,
        redundant=options.redundant,
        rebalance_after=getattr(options, "rebalance_after", None),
        http_port=http_port,
        has_traces=getattr(options, "trace", False),
    )
    if topology.redundant:
        is_alone = getattr(options, "monolith", False)  # engines of the prefill layout do both
        _check_redundant(topology, (topology.prefill,) if is_alone else topology.sides)
    return topology


def check_extras(options: argparse.Namespace) -> None:
    """Raises CommandError for values that cannot be, or that this version does not have yet."""
    if options.redundant < 0:
        raise usage(f"--redundant {options.redundant}: give 0 or more experts")
    if options.draft == "on":
        raise usage("--draft on: draft tokens are not part of this version; use --draft off")
    rebalance_after = getattr(options, "rebalance_after", None)
    if rebalance_after is not None and rebalance_after < 1:
        raise usage(f"--rebalance-after {rebalance_after}: give 1 step or more, or leave it out")


def _check_redundant(topology: Topology, sides: Sequence[Side]) -> None:
    """Raises CommandError if a side has no use for so many replicas; before anything starts."""
    from engine.config import EngineRole
    from engine.fit import require_layout
    from engine.model.config import ModelConfig
    from engine.parallel.layout import data_parallel, parse_layout

    for side in sides:
        run = parse_layout(side.layout) if side.layout else data_parallel(side.ranks)
        try:
            config = ModelConfig.load(topology.model)
            require_layout(config, run, EngineRole(side.name), min_redundant=topology.redundant)
        except ValueError as error:
            raise usage(
                f"--redundant {topology.redundant}, {side.name} ranks {run}: {error}"
            ) from error


def _side(options: argparse.Namespace, side: str, model: Path, default: int) -> tuple[int, str]:
    """Ranks of a side, and its layout where ranks alone do not say it."""
    ranks: int | None = getattr(options, f"{side}_ranks")
    layout: str | None = getattr(options, f"{side}_layout")
    if layout is None:
        return default if ranks is None else ranks, ""
    from engine.config import EngineRole
    from engine.parallel.layout import data_parallel

    flag = f"--{side}-layout"
    run = checked_layout(layout, flag, model, EngineRole(side))
    found = run.layout.world_size
    if ranks is not None and ranks != found:
        raise usage(
            f"--{side}-ranks {ranks} contradicts {flag} {layout}, which has {found} ranks; give "
            "one of them"
        )
    return found, "" if run == data_parallel(found) else str(run)


def checked_layout(text: str, flag: str, model: Path, role: EngineRole) -> RunLayout:
    """Reads a layout and checks that engines of a role can run the model in it.

    Raises:
        CommandError: They cannot, or it is no layout; with a way out.
    """
    from engine.fit import require_layout
    from engine.model.config import ModelConfig
    from engine.parallel.errors import LayoutError
    from engine.parallel.layout import parse_layout

    try:
        run = parse_layout(text)
        require_layout(ModelConfig.load(model), run, role)
    except LayoutError as error:
        # A sentence about the text itself begins with it.
        said = "; ".join(
            sentence.removeprefix(f"layout {text}: ") if check == "TEXT" else f"{check}: {sentence}"
            for check, sentence in error.violations
        )
        raise usage(f"{flag} {text}: {said}") from error
    except ValueError as error:
        raise usage(f"{flag} {text}: {error}") from error
    return run


def _ranks(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks, 1 to 256")
    return int(text)
