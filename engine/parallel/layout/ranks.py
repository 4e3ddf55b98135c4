"""Sizes, coordinates and groups of the data-parallel family: dp, cp, attention tp, ep, enp.

One numbering of ranks: tp innermost, then cp, then dp, replica outermost; store ranks, which hold
rows of the Engram table and run no step, come last. Knows no process and no tensor library.

Invariants:
- the groups of each family partition the ranks that stand in its view;
- a layout that passed all checks (checks.py) divides exactly everywhere below.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Final

from engine.parallel.errors import LayoutError
from engine.parallel.layout.views import Channel, Groups, Transport, View

# Far beyond what anybody runs as one group; everything about a layout can be listed up to here.
MOST_RANKS: Final = 16_384


class Family(enum.Enum):
    """Families of groups; each partitions the ranks of its view.

    An engine is what shares one scheduler, a domain what path A gathers rows over: a replica.
    """

    DP = "dp"
    CP = "cp"
    EP = "ep"
    ENP = "enp"
    ATTN_TP = "attn_tp"
    ENGINE = "engine"
    DOMAIN = "domain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Where one rank stands in every view; None where a store rank has no place."""

    rank: int
    replica: int | None
    dp: int | None
    cp: int | None
    engine: int | None
    ep_rank: int | None
    ep_group: int | None
    enp_rank: int | None
    enp_group: int | None
    tp: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of the parallel axes.

    Args:
        dp: engines per replica; 0 means max(1, ep // (cp * attn_tp)).
        cp: ranks that share the tokens of one engine.
        ep: ranks that share the experts.
        enp: ranks that share one copy of the Engram table; 0 means all of a replica, or, with
            store ranks, the whole world.
        attn_tp: ranks that share the attention heads of one engine.
        store_ranks: ranks that only hold table rows.

    Raises:
        LayoutError: a size below 1 (below 0 where 0 has a meaning), or more than MOST_RANKS ranks.
    """

    dp: int = 0
    cp: int = 1
    ep: int = 1
    enp: int = 0
    attn_tp: int = 1
    store_ranks: int = 0

    def __post_init__(self) -> None:
        """Fills in the derived sizes."""
        lowest = {"cp": 1, "ep": 1, "attn_tp": 1, "dp": 0, "enp": 0, "store_ranks": 0}
        found = [
            ("SIZE", f"{name} is {getattr(self, name)}, must be at least {bound}")
            for name, bound in lowest.items()
            if getattr(self, name) < bound
        ]
        if found:
            raise LayoutError(found)
        if not self.dp:
            object.__setattr__(self, "dp", max(1, self.ep // self.engine_size))
        if not self.enp:
            object.__setattr__(self, "enp", self.replica_size + self.store_ranks)
        if self.world_size > MOST_RANKS:
            names = [name for name in ("dp", *lowest) if getattr(self, name)]
            sizes = ", ".join(f"{name} {getattr(self, name)}" for name in dict.fromkeys(names))
            text = f"{sizes} make {self.world_size} ranks, more than {MOST_RANKS}: lower the sizes"
            raise LayoutError([("SIZE", text)])

    @property
    def engine_size(self) -> int:
        """Ranks of one engine: they share one scheduler."""
        return self.cp * self.attn_tp

    @property
    def replica_size(self) -> int:
        """Ranks of one model replica."""
        return self.dp * self.engine_size

    @property
    def world_size(self) -> int:
        """All ranks."""
        if self.store_ranks:
            return self.replica_size + self.store_ranks
        return max(self.enp, self.replica_size)

    @property
    def num_engine_ranks(self) -> int:
        """Ranks that run steps; they come before the store ranks."""
        return self.world_size - self.store_ranks

    @property
    def num_replicas(self) -> int:
        """Model replicas in the world."""
        return self.num_engine_ranks // self.replica_size

    @property
    def num_table_copies(self) -> int:
        """Complete copies of the Engram table in the world."""
        return 1 if self.store_ranks else self.world_size // self.enp

    @property
    def num_engines(self) -> int:
        """Engines: sets of cp * attn_tp ranks with one scheduler and one KV."""
        return self.num_engine_ranks // self.engine_size

    @property
    def attention_view(self) -> View:
        """(replica, dp, cp, tp) over the engine ranks."""
        sizes = {"replica": self.num_replicas, "dp": self.dp, "cp": self.cp, "tp": self.attn_tp}
        return View(name="attention", axes=sizes)

    @property
    def expert_view(self) -> View:
        """(edp, ep) over the engine ranks; edp counts groups that hold all experts each."""
        return View(name="expert", axes={"edp": self.num_engine_ranks // self.ep, "ep": self.ep})

    @property
    def store_view(self) -> View:
        """(copy, enp) over all ranks, or over the last enp ranks when there are store ranks."""
        return View(
            name="store",
            axes={"copy": self.num_table_copies, "enp": self.enp},
            first_rank=self.world_size - self.enp if self.store_ranks else 0,
        )

    @property
    def lockstep_block(self) -> int:
        """Ranks tied together by the collectives of a step; blocks are contiguous.

        The Engram fetch is one-sided, so enp ties nobody.
        """
        return math.lcm(self.ep, self.engine_size)

    @property
    def is_dp_family_sufficient(self) -> bool:
        """Whether agreement over the DP groups covers every lockstep block."""
        return self.replica_size % self.lockstep_block == 0

    @property
    def is_over_synchronised(self) -> bool:
        """Whether the DP groups make blocks wait for each other that need not."""
        return self.is_dp_family_sufficient and self.replica_size > self.lockstep_block

    def coordinates(self, rank: int) -> Coordinates:
        """Coordinates of a global rank.

        Raises:
            ValueError: no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is not in 0..{self.world_size - 1}")
        attention, experts, store = (
            view.coordinates(rank) if rank in view else {}
            for view in (self.attention_view, self.expert_view, self.store_view)
        )
        return Coordinates(
            rank=rank,
            replica=attention.get("replica"),
            dp=attention.get("dp"),
            cp=attention.get("cp"),
            tp=attention.get("tp"),
            engine=rank // self.engine_size if attention else None,
            ep_rank=experts.get("ep"),
            ep_group=experts.get("edp"),
            enp_rank=store.get("enp"),
            enp_group=store.get("copy"),
        )

    def rank_of(self, *, replica: int, dp: int, cp: int, tp: int = 0) -> int:
        """Global rank at attention coordinates."""
        return self.attention_view.rank_of({"replica": replica, "dp": dp, "cp": cp, "tp": tp})

    def groups(self, family: Family) -> Groups:
        """Groups of a family, each in axis order, by first member."""
        view, axes = {
            Family.DP: (self.attention_view, ("dp",)),
            Family.CP: (self.attention_view, ("cp",)),
            Family.ATTN_TP: (self.attention_view, ("tp",)),
            Family.ENGINE: (self.attention_view, ("cp", "tp")),
            Family.DOMAIN: (self.attention_view, ("dp", "cp", "tp")),
            Family.EP: (self.expert_view, ("ep",)),
            Family.ENP: (self.store_view, ("enp",)),
        }[family]
        return view.groups(*axes)

    def leader_of(self, rank: int) -> int:
        """The rank that schedules for the engine of an engine rank: its first."""
        return rank - rank % self.engine_size

    def voters(self) -> Groups:
        """Leaders that agree on every step: those of a replica, which contains lockstep blocks."""
        return tuple(group for group in self.groups(Family.DP) if group[0] % self.engine_size == 0)

    def lockstep_blocks(self) -> Groups:
        """The lockstep blocks, as groups of engine ranks."""
        block = self.lockstep_block
        sizes = {"block": self.num_engine_ranks // block, "rank": block}
        return View(name="lockstep", axes=sizes).groups("rank")

    def channels(self, rank: int, *, has_domain: bool = False) -> tuple[Channel, ...]:
        """Channels that a rank opens, in the order in which all ranks open theirs.

        Args:
            rank: which rank.
            has_domain: rows reach the experts over the whole domain (path A).
        """
        wanted = [
            (Family.DP, "vote", Transport.HOST, self.voters()),
            (Family.ENGINE, "plans", Transport.HOST, self.groups(Family.ENGINE)),
            (Family.CP, "sequence", Transport.DEVICE, self.groups(Family.CP)),
            (Family.ATTN_TP, "attention", Transport.DEVICE, self.groups(Family.ATTN_TP)),
            (Family.EP, "experts", Transport.DEVICE, self.groups(Family.EP)),
            (Family.ENP, "table", Transport.ONE_SIDED, self.groups(Family.ENP)),
        ]
        if has_domain:
            domains = self.groups(Family.DOMAIN)
            wanted.insert(4, (Family.DOMAIN, "domain", Transport.DEVICE, domains))
        return tuple(
            Channel(family=family.value, purpose=purpose, members=group, transport=transport)
            for family, purpose, transport, groups in wanted
            for group in groups
            if rank in group
        )
