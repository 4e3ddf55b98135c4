"""What a rank says in a vote and hears from it; different step settings are refused before."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from engine.agreement import STOP_EPOCH, StepAgreement, require_equal_settings
from engine.config import EngineRole, EngineSettings, SettingsError
from engine.parallel.lockstep import IntArray
from engine.parallel.votes import LocalVote
from engine.plan import StepKind
from engine.schedule import Demand


class Peers(LocalVote):
    """Reduces with the vectors that peers have brought."""

    def __init__(self) -> None:
        super().__init__()
        self.brought: list[IntArray] = []

    def reduce_max(self, vector: IntArray) -> IntArray:
        self.brought.append(vector)
        reduced: IntArray = np.max(np.stack(self.brought), axis=0)
        return reduced


def settings(**fields: object) -> EngineSettings:
    return EngineSettings(**{"num_pages": 8, "num_ranks": 2, **fields})  # type: ignore[arg-type]


def test_equal_settings_pass() -> None:
    peers = Peers()
    for rank in range(2):
        require_equal_settings(peers, settings(rank=rank, late_scheduling=True))
    assert len(peers.brought) == 2


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("late_scheduling", True, "late_scheduling is {} on rank 1, .*2 ranks.* false to true"),
        ("prefill_attempt_interval", 7, "prefill_attempt_interval is {} on rank 1, .* 4 to 7"),
        ("prefill_any_attempt_interval", 9, "prefill_any_attempt_interval is {}.* 9 to 16"),
        ("role", EngineRole.DECODE, "role is {} on rank 1.* normal to decode"),
    ],
)
@pytest.mark.parametrize("odd", [False, True])
def test_a_difference_is_refused_by_name(
    field: str, value: object, message: str, odd: bool
) -> None:
    peers = Peers()
    one, other = settings(rank=0), settings(rank=0, **{field: value})
    require_equal_settings(peers, one if odd else other)
    mine = settings(rank=1, **{field: value}) if odd else settings(rank=1)
    shown = getattr(mine, field)
    shown = shown.value if isinstance(shown, EngineRole) else str(shown).lower()
    with pytest.raises(SettingsError, match=message.format(re.escape(shown))):
        require_equal_settings(peers, mine)


IDLE = Demand(
    is_unfinished=False,
    wants_prefill=False,
    has_decode_rows=False,
    num_decode_rows=0,
    num_prefill_rows=0,
)
BUSY = Demand(
    is_unfinished=True,
    wants_prefill=True,
    has_decode_rows=True,
    num_decode_rows=3,
    num_prefill_rows=17,
)


class Scripted(LocalVote):
    """Reduces or gathers with what one peer says, and remembers what was brought."""

    def __init__(self, peer: list[int]) -> None:
        super().__init__()
        self.peer = np.array(peer, dtype=np.int64)
        self.brought: list[list[int]] = []

    def reduce_max(self, vector: IntArray) -> IntArray:
        self.brought.append(vector.tolist())
        reduced: IntArray = np.maximum(vector, self.peer)
        return reduced

    def gather(self, vector: IntArray) -> IntArray:
        self.brought.append(vector.tolist())
        return np.stack([vector, self.peer])


ALONE = [0, 0, 0, 0, 0, 0, 0, 0, -9]


def agreement(vote: Scripted, *, gathers_rows: bool = False, **fields: object) -> StepAgreement:
    chosen = settings(**{"num_ranks": 1, **fields})
    return StepAgreement(chosen, vote, gathers_rows=gathers_rows)


def test_what_is_wanted_is_said_and_what_is_not_wanted_counts_nothing() -> None:
    vote = Scripted(ALONE)
    found = agreement(vote)
    found.agree(BUSY, epoch=0)
    found.agree(replace(BUSY, wants_prefill=False), epoch=4)
    found.agree(replace(BUSY, has_decode_rows=False), epoch=0)
    assert vote.brought == [
        [1, 1, 0, 1, 0, 3, 17, 0, 0],
        [1, 0, 1, 1, 0, 3, 0, 4, -4],
        [1, 1, 0, 0, 0, 0, 17, 0, 0],
    ]


def test_a_reduced_vote_tells_no_rows() -> None:
    agreed = agreement(Scripted([1, 0, 1, 1, 0, 8, 0, 0, 0])).agree(BUSY, epoch=0)
    assert agreed.decision.step_kind is not StepKind.NONE
    assert agreed.vote == (1, 1, 1, 1, 0, 8, 17, 0, 0)
    assert (agreed.group_rows, agreed.max_rows) == ((), None)


@pytest.mark.parametrize(
    ("role", "kind", "rows", "most"),
    [
        (EngineRole.PREFILL, StepKind.PREFILL, (17, 2), 17),
        (EngineRole.DECODE, StepKind.DECODE, (3, 8), 3),
    ],
)
def test_a_gathered_vote_tells_the_rows_of_the_agreed_kind(
    role: EngineRole, kind: StepKind, rows: tuple[int, ...], most: int
) -> None:
    vote = Scripted([1, 0, 1, 1, 0, 8, 2, 0, 0])
    agreed = agreement(vote, gathers_rows=True, role=role).agree(BUSY, epoch=0)
    assert agreed.decision.step_kind is kind
    assert (agreed.group_rows, agreed.max_rows) == (rows, most)


def test_where_no_step_runs_there_are_no_rows() -> None:
    found = agreement(Scripted(ALONE), gathers_rows=True)
    assert found.describe_last() == "kind none (no vote yet), last vote []"
    agreed = found.agree(IDLE, epoch=0)
    assert agreed.decision.step_kind is StepKind.NONE
    assert (agreed.group_rows, agreed.max_rows) == ((), None)
    assert found.describe_last() == "kind none (idle), last vote [0, 0, 1, 0, 0, 0, 0, 0, 0]"


def test_the_group_leaves_when_all_ask_for_it() -> None:
    for peer_epoch, is_agreed in ((0, False), (STOP_EPOCH, True)):
        vote = Scripted([1, 0, 1, 0, 0, 0, 0, peer_epoch, -peer_epoch])
        decision = agreement(vote).agree(IDLE, epoch=STOP_EPOCH).decision
        assert (decision.agreed_epoch == STOP_EPOCH) is is_agreed


def test_settings_are_compared_once_and_before_the_first_vote() -> None:
    vote = Scripted([0] * 9)
    found = agreement(vote, num_ranks=2)
    with pytest.raises(SettingsError, match="prefill_attempt_interval is 4 on rank 0"):
        found.agree(IDLE, epoch=0)
    assert len(vote.brought) == 1
    peers = Peers()
    found = StepAgreement(settings(), peers, gathers_rows=False)
    for _ in range(2):
        found.agree(IDLE, epoch=0)
    assert len(peers.brought) == 3
