"""The row groups a model's forward pass uses on one rank.

Built by `open_ports` from a layout; a layer asks a group for its size and never builds one. Groups
of one rank are `LoneGroup`s, whose collectives move nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from engine.parallel.rows.modes import Path
from engine.parallel.rows.transitions import Gather, Gathered, RowGroup, bytes_per_row


class LoneGroup:
    """The group of one rank."""

    rank = 0
    size = 1

    def __init__(self, name: str) -> None:
        self.name = name

    def all_reduce(self, rows: Tensor) -> Tensor:
        """See `RowGroup.all_reduce`."""
        return rows

    def all_gather(self, rows: Tensor) -> Tensor:
        """See `RowGroup.all_gather`."""
        return rows

    def all_gather_sized(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `RowGroup.all_gather_sized`."""
        bytes_per_row(rows, sizes, self.rank)
        return rows

    def start_all_gather(self, rows: Tensor) -> Gather:
        """See `RowGroup.start_all_gather`."""
        return Gathered(rows)

    def reduce_scatter(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `RowGroup.reduce_scatter`."""
        if list(sizes) != [len(rows)]:
            raise ValueError(f"{len(rows)} rows do not split into {list(sizes)} for 1")
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroups:
    """Who shares rows with this rank inside a step.

    Args:
        cp: ranks that share the tokens of this rank's engine (contiguous for attn_tp 1).
        attn_tp: ranks that share the attention heads of this rank's engine.
        domain: all ranks of the TP domain; path A gathers rows to all of them.
        path: how rows reach the experts, equal on all ranks.
        moe_ep: on paths without dispatch, ranks of the domain that share the experts; each of
            their experts is cut over its inner width by `moe_tp` neighbouring ranks.

    Raises:
        ValueError: groups that do not fit the path or each other.
    """

    cp: RowGroup = field(default_factory=lambda: LoneGroup("cp"))
    attn_tp: RowGroup = field(default_factory=lambda: LoneGroup("attn_tp"))
    domain: RowGroup = field(default_factory=lambda: LoneGroup("domain"))
    path: Path = Path.DIRECT
    moe_ep: int = 1

    def __post_init__(self) -> None:
        """Refuses groups that do not fit the path, or each other."""
        widths = f"cp {self.cp.size}, attn_tp {self.attn_tp.size}, domain {self.domain.size}"
        if self.moe_ep < 1 or self.domain.size % self.moe_ep:
            raise ValueError(
                f"moe_ep {self.moe_ep} does not divide the domain of {self.domain.size} ranks"
            )
        if self.path is Path.DIRECT and self.attn_tp.size > 1:
            raise ValueError(
                f"path direct would dispatch every row attn_tp times ({widths}): use path b"
            )
        if self.path is Path.B and self.cp.size > 1:
            raise ValueError(f"path b and cp would both cut rows ({widths}): use one of them")
        if self.path is Path.A and (self.cp.size > 1 or self.domain.size % self.attn_tp.size):
            raise ValueError(
                f"path a wants cp 1 and a domain of whole attention groups, not {widths}"
            )
        if self.path is Path.PLAIN and (self.cp.size > 1 or self.domain.size != self.attn_tp.size):
            raise ValueError(f"path plain wants cp 1 and a domain of attn_tp ranks, not {widths}")

    @property
    def gathers_rows(self) -> bool:
        """Whether rows of all attention groups meet on every rank, so that all must be counted."""
        return self.path is Path.A

    @property
    def moe_tp(self) -> int:
        """Ranks that share the inner width of one expert."""
        return self.domain.size // self.moe_ep
