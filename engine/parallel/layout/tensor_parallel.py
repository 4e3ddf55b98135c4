"""Sizes, coordinates and groups of the tensor-parallel family: one TP domain, seen twice.

Attention sees the domain as (dp, cp, tp), the experts see the same ranks as (dp, ep, tp); the last
axis is fastest in both. Pipeline stages repeat the domain. Nothing is floored: a width that does
not divide is refused.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Final

from engine.parallel.errors import LayoutError
from engine.parallel.layout.checks import AttentionShape, Violations, check_heads
from engine.parallel.layout.views import Groups, View

# Backends whose expert communicator is the TP communicator, so that ep = tp.
SPANNING_BACKENDS: Final = frozenset(
    {
        "ascend_fuseep",
        "deepep",
        "deepep_v2",
        "flashinfer",
        "flashinfer_megamoe",
        "megamoe",
        "mooncake",
        "mori",
        "nixl",
        "pplx",
    }
)


class TensorFamily(enum.Enum):
    """Families of groups of the domain."""

    TP = "tp"
    ATTN_TP = "attn_tp"
    ATTN_CP = "attn_cp"
    MOE_TP = "moe_tp"
    MOE_EP = "moe_ep"
    MOE_DP = "moe_dp"
    PP = "pp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """What limits cutting an expert: its inner width, and the block that shares a scale."""

    intermediate: int
    quantisation_block: int = 1

    def keeps_blocks_whole(self, moe_tp: int) -> bool:
        """Whether moe_tp equal parts end at block borders."""
        return self.intermediate % (moe_tp * self.quantisation_block) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """Widths of one TP domain of `tp` ranks.

    Args:
        tp: ranks of the domain.
        dp: attention data parallelism; acts only with `dp_attention`.
        cp: attention context parallelism.
        ep: expert parallelism; None is 1, or tp with an all-to-all backend.
        moe_dp: data parallelism of the experts.
        pp: pipeline stages.
        dp_attention: whether `dp` acts.
        all_to_all: dispatch goes through a backend that spans the domain (`SPANNING_BACKENDS`).
    """

    tp: int
    dp: int = 1
    cp: int = 1
    ep: int | None = None
    moe_dp: int = 1
    pp: int = 1
    dp_attention: bool = True
    all_to_all: bool = False

    def __post_init__(self) -> None:
        """Refuses sizes below 1."""
        found = [
            ("SIZE", f"{name} is {size}, must be at least 1")
            for name in ("tp", "dp", "cp", "ep", "moe_dp", "pp")
            if (size := getattr(self, name)) is not None and size < 1
        ]
        if found:
            raise LayoutError(found)

    @property
    def world_size(self) -> int:
        """Ranks of all stages."""
        return self.tp * self.pp

    @property
    def attn_dp(self) -> int:
        """Groups of ranks with requests of their own."""
        return self.dp if self.dp_attention else 1

    @property
    def attn_cp(self) -> int:
        """Ranks that share the tokens of an attention group."""
        return self.cp

    @property
    def attn_tp(self) -> int:
        """Ranks that share the heads; exact in a valid layout."""
        return self.tp // (self.attn_dp * self.attn_cp)

    @property
    def moe_ep(self) -> int:
        """Ranks that share the experts."""
        if self.ep is not None:
            return self.ep
        return self.tp if self.all_to_all else 1

    @property
    def moe_tp(self) -> int:
        """Ranks that share one expert's inner width; exact in a valid layout."""
        return self.tp // (self.moe_ep * self.moe_dp)

    @property
    def lockstep_block(self) -> int:
        """The whole domain steps together."""
        return self.tp

    @property
    def attention_view(self) -> View:
        """(pp, dp, cp, tp) over all ranks."""
        return View(
            name="attention",
            axes={"pp": self.pp, "dp": self.attn_dp, "cp": self.attn_cp, "tp": self.attn_tp},
        )

    @property
    def expert_view(self) -> View:
        """(pp, dp, ep, tp) over all ranks."""
        return View(
            name="expert",
            axes={"pp": self.pp, "dp": self.moe_dp, "ep": self.moe_ep, "tp": self.moe_tp},
        )

    def groups(self, family: TensorFamily) -> Groups:
        """Groups of a family, by first member."""
        view, axes = {
            TensorFamily.TP: (self.attention_view, ("dp", "cp", "tp")),
            TensorFamily.ATTN_TP: (self.attention_view, ("tp",)),
            TensorFamily.ATTN_CP: (self.attention_view, ("cp",)),
            TensorFamily.MOE_TP: (self.expert_view, ("tp",)),
            TensorFamily.MOE_EP: (self.expert_view, ("ep",)),
            TensorFamily.MOE_DP: (self.expert_view, ("dp",)),
            TensorFamily.PP: (self.attention_view, ("pp",)),
        }[family]
        return view.groups(*axes)


def check_tensor_layout(
    layout: TensorLayout,
    *,
    attention: AttentionShape | None = None,
    expert: ExpertShape | None = None,
    has_moe_draft: bool = False,
) -> Violations:
    """Finds everything wrong with a domain: (check, sentence) pairs, empty when it is valid.

    Args:
        layout: the widths.
        attention, expert: shapes of the model; checks about what is not given are left out.
        has_moe_draft: the draft model has experts: with data-parallel attention its output
            projection would add up rows of different requests unless attn_tp is 1.
    """
    found: Violations = []
    tp, shares = layout.tp, layout.attn_dp * layout.attn_cp
    is_attention_exact = tp % shares == 0
    if not is_attention_exact:
        found.append(
            (
                "ATTENTION",
                f"attn_dp {layout.attn_dp} * attn_cp {layout.attn_cp} = {shares} does not divide "
                f"tp {tp}: use a product that is one of {_divisors(tp)}",
            )
        )
    else:
        found += check_heads(layout.attn_tp, attention)
    if layout.all_to_all and layout.ep not in (None, tp):
        found.append(
            (
                "A2A",
                f"ep {layout.ep} with an all-to-all backend over tp {tp}: the backend's group is "
                f"the whole domain, leave ep out or set it to {tp}",
            )
        )
    elif tp % (layout.moe_ep * layout.moe_dp):
        found.append(
            (
                "MOE",
                f"ep {layout.moe_ep} * moe_dp {layout.moe_dp} does not divide tp {tp}: use a "
                f"product that is one of {_divisors(tp)}",
            )
        )
    elif expert is not None and not expert.keeps_blocks_whole(layout.moe_tp):
        fitting = [part for part in range(1, tp + 1) if tp % part == 0]
        widths = ", ".join(str(part) for part in fitting if expert.keeps_blocks_whole(part))
        found.append(
            (
                "WIDTH",
                f"moe_tp {layout.moe_tp} cuts the experts' inner width {expert.intermediate} "
                f"inside a quantisation block of {expert.quantisation_block}: choose ep and moe_dp "
                f"so that moe_tp is one of {widths}",
            )
        )
    if has_moe_draft and layout.dp_attention and layout.attn_dp > 1 and is_attention_exact:
        found += _check_draft(layout)
    return found


def _check_draft(layout: TensorLayout) -> Violations:
    if layout.attn_tp == 1:
        return []
    return [
        (
            "DRAFT",
            f"a draft model with experts needs attn_tp 1, but dp {layout.dp} in tp {layout.tp} "
            f"gives attn_tp {layout.attn_tp}: set dp to {layout.tp // layout.attn_cp} or turn "
            f"drafts off",
        )
    ]


def _divisors(number: int) -> str:
    return ", ".join(str(part) for part in range(1, number + 1) if math.gcd(part, number) == part)
