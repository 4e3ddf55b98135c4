"""Layouts as people write them: `dp=4,cp=2,ep=8`, `dp=4,ep=8,attn_tp=2,path=b`. Pure.

Sizes that are left out follow from the others: experts are shared by all ranks of a replica, and
`dp` is what `ep` leaves room for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.parallel.errors import LayoutError
from engine.parallel.layout.ranks import Layout

_SIZES = ("dp", "cp", "ep", "enp", "attn_tp")
_PATHS = ("a", "b")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLayout:
    """A layout, and how rows reach the experts in it.

    Args:
        layout: sizes of the axes.
        all_to_all: rows are dispatched to the ranks of their experts; otherwise they are gathered
            on all ranks of the domain and summed back (path A).
    """

    layout: Layout = field(default_factory=Layout)
    all_to_all: bool = True

    @property
    def engine_size(self) -> int:
        """Ranks of one engine."""
        return self.layout.engine_size

    def __str__(self) -> str:
        """As written; sizes of 1 are left out, as is what follows from the others."""
        layout = self.layout
        parts = [f"dp={layout.dp}"]
        parts += [
            f"{name}={getattr(layout, name)}"
            for name in ("cp", "attn_tp")
            if getattr(layout, name) > 1
        ]
        parts.append(f"ep={layout.ep}")
        if layout.enp != layout.replica_size:
            parts.append(f"enp={layout.enp}")
        if not self.all_to_all:
            parts.append("path=a")
        elif layout.attn_tp > 1:
            parts.append("path=b")
        return ",".join(parts)


def data_parallel(num_ranks: int) -> RunLayout:
    """Ranks that are an engine each and share the experts."""
    return RunLayout(layout=Layout(dp=num_ranks, ep=num_ranks))


def parse_layout(text: str) -> RunLayout:
    """Reads a layout.

    Raises:
        LayoutError: an unknown name, a size that is no positive number, or a path that the sizes
            do not go with; says what to write instead.
    """
    given: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if text.strip() and not part.strip():
            raise _wrong(text, "there is nothing between or after its commas: leave one comma out")
        if name not in (*_SIZES, "path"):
            raise _wrong(text, f"{part!r} is not one of {', '.join(_SIZES)}, path")
        if name in given:
            raise _wrong(text, f"{name} is given twice, {given[name]} and {value}: leave one out")
        given[name] = value
    path = given.pop("path", None)
    if path not in (None, *_PATHS):
        raise _wrong(text, f"path={path} is not one of {', '.join(_PATHS)}")
    for name, value in given.items():
        if not value.isdecimal() or int(value) < 1:
            raise _wrong(text, f"{name} needs a positive number, as in {name}=4")
    sizes = {name: int(value) for name, value in given.items()}
    if "ep" not in sizes:
        sizes["ep"] = sizes.get("dp", 1) * sizes.get("cp", 1) * sizes.get("attn_tp", 1)
    layout = Layout(**sizes)
    if path == "b" and layout.attn_tp == 1:
        raise _wrong(text, "path=b cuts the rows of attn_tp ranks, but attn_tp is 1: leave it out")
    return RunLayout(layout=layout, all_to_all=path != "a")


def _wrong(text: str, sentence: str) -> LayoutError:
    return LayoutError([("TEXT", f"layout {text}: {sentence}")])
