"""Flags that say which system to start, shared by `up`, `demo` and `verify`.

A layout is written `dp=4,ep=4`. This version runs data-parallel ranks that share the experts
(dp = ep = number of ranks); other layouts are refused with a sentence, never silently changed.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from cli.errors import usage
from runtime.bundled import MODEL, default_model

DEFAULT_PREFILL_RANKS = 1
DEFAULT_DECODE_RANKS = 2
_MAX_PORT = 65_535
_LAYOUT_KEYS = ("dp", "cp", "ep", "enp", "attn_tp", "path")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Which system to start.

    Attributes:
        store_url: The store to use; None starts a private one.
        kv_quantisers: auto, on or off.
        redundant: Fewest redundant experts of a layer, on both sides.
        rebalance_after: Steps after which experts move by their load, again and again; None never.
        http_port: Port of the HTTP face, 0 for a free one; None: without it.
    """

    model: Path
    prefill_ranks: int = DEFAULT_PREFILL_RANKS
    decode_ranks: int = DEFAULT_DECODE_RANKS
    store_url: str | None = None
    kv_quantisers: str = "auto"
    redundant: int = 0
    rebalance_after: int | None = None
    http_port: int | None = None

    def __str__(self) -> str:
        """Names it in one phrase."""
        name = self.model.resolve().name
        return f"{name}, {self.prefill_ranks} prefill + {self.decode_ranks} decode ranks"


def add_rank_flags(parser: argparse.ArgumentParser) -> None:
    """Ranks and layouts of both sides."""
    for side, count in (("prefill", DEFAULT_PREFILL_RANKS), ("decode", DEFAULT_DECODE_RANKS)):
        parser.add_argument(
            f"--{side}-ranks", type=_ranks, metavar="N", help=f"{side} ranks (default {count})"
        )
        parser.add_argument(
            f"--{side}-layout",
            metavar="LAYOUT",
            help=f"layout of the {side} ranks, e.g. dp=4,ep=4; instead of --{side}-ranks",
        )
    parser.add_argument(
        "--redundant", type=int, default=0, metavar="M", help="redundant experts (default 0)"
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
    parser.add_argument("--trace", action="store_true", help="record traces")


def topology_of(options: argparse.Namespace, *, model: Path | None = None) -> Topology:
    """The system of the flags.

    Raises:
        CommandError: The flags contradict each other, or ask for what there is not yet.
    """
    http_port: int | None = getattr(options, "http", None)
    if http_port is not None and not 0 <= http_port <= _MAX_PORT:
        raise usage(f"--http {http_port}: give a port, 1 to {_MAX_PORT}, or 0 for a free one")
    if getattr(options, "trace", False):
        raise usage("--trace: traces are not part of this version")
    check_extras(options)
    directory = model or options.model
    if not (directory / "config.json").is_file():
        raise usage(
            f"--model {directory}: there is no config.json; give the directory of a model, or run "
            f"where {MODEL} is"
        )
    return Topology(
        model=directory,
        prefill_ranks=_side(options, "prefill", DEFAULT_PREFILL_RANKS),
        decode_ranks=_side(options, "decode", DEFAULT_DECODE_RANKS),
        store_url=getattr(options, "store", None),
        redundant=options.redundant,
        rebalance_after=getattr(options, "rebalance_after", None),
        http_port=http_port,
    )


def check_extras(options: argparse.Namespace) -> None:
    """Raises CommandError for values that cannot be, or that this version does not have yet."""
    if options.redundant < 0:
        raise usage(f"--redundant {options.redundant}: give 0 or more experts")
    if options.draft == "on":
        raise usage("--draft on: draft tokens are not part of this version; use --draft off")
    rebalance_after = getattr(options, "rebalance_after", None)
    if rebalance_after is not None and rebalance_after < 1:
        raise usage(f"--rebalance-after {rebalance_after}: give 1 step or more, or leave it out")


def ranks_of_layout(text: str, flag: str) -> int:
    """Number of ranks of a layout.

    Raises:
        CommandError: Not a layout, or one that this version does not run.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        if key not in _LAYOUT_KEYS or key in sizes:
            raise usage(f"{flag} {text}: {part!r} is not one of {', '.join(_LAYOUT_KEYS)}, once")
        if key == "path":
            raise usage(f"{flag} {text}: expert paths are not part of this version; use dp and ep")
        if not value.isdecimal() or int(value) < 1:
            raise usage(f"{flag} {text}: {key} needs a positive number, as in {key}=4")
        sizes[key] = int(value)
    for key in ("cp", "enp", "attn_tp"):
        if sizes.get(key, 1) != 1:
            raise usage(
                f"{flag} {text}: {key}={sizes[key]} is not part of this version; ranks are "
                "data-parallel and share the experts: dp=N,ep=N"
            )
    counts = {sizes[key] for key in ("dp", "ep") if key in sizes}
    if len(counts) > 1:
        raise usage(f"{flag} {text}: dp and ep must be equal in this version: dp=N,ep=N")
    return counts.pop() if counts else 1


def _side(options: argparse.Namespace, side: str, default: int) -> int:
    ranks: int | None = getattr(options, f"{side}_ranks")
    layout: str | None = getattr(options, f"{side}_layout")
    if layout is None:
        return default if ranks is None else ranks
    of_layout = ranks_of_layout(layout, f"--{side}-layout")
    if ranks is not None and ranks != of_layout:
        raise usage(
            f"--{side}-ranks {ranks} contradicts --{side}-layout {layout}, which has {of_layout} "
            "ranks; give one of them"
        )
    return of_layout


def _ranks(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks, 1 to 256")
    return int(text)
