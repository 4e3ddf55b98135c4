"""Ranks with different step settings refuse each other, whichever of them looks."""

from __future__ import annotations

import re

import numpy as np
import pytest

from engine.agreement import require_equal_settings
from engine.config import EngineRole, EngineSettings, SettingsError
from engine.parallel.lockstep import IntArray
from engine.parallel.votes import LocalVote


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
