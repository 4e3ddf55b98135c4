"""What the ranks of a lockstep group must have in common before their first step.

Ranks that count votes by other intervals, or run other kinds of steps, would part ways in the
middle of a collective; here they refuse to start.
"""

from __future__ import annotations

import numpy as np

from engine.config import EngineRole, EngineSettings, SettingsError
from engine.parallel.lockstep import NUM_FIELDS, VotePort

_ROLES = list(EngineRole)


def require_equal_settings(vote: VotePort, settings: EngineSettings) -> None:
    """Compares the settings on which steps depend over the ranks; a collective, before any step.

    Raises:
        SettingsError: they differ; names the field, and who has what as far as a vote can tell.
        GroupError: a rank is late or lost.
    """
    values = {
        "role": _ROLES.index(settings.role),
        "prefill_attempt_interval": settings.prefill_attempt_interval,
        "prefill_any_attempt_interval": settings.prefill_any_attempt_interval,
        "late_scheduling": int(settings.late_scheduling),
    }
    vector = np.zeros(NUM_FIELDS, dtype=np.int64)
    for idx, value in enumerate(values.values()):
        vector[2 * idx : 2 * idx + 2] = value, -value
    reduced = vote.reduce_max(vector)
    for idx, name in enumerate(values):
        highest, lowest = int(reduced[2 * idx]), -int(reduced[2 * idx + 1])
        if highest != lowest:
            raise SettingsError(
                f"{name} is {_text(name, values[name])} on rank {settings.rank}, but the "
                f"{settings.num_ranks} ranks of the group have {_text(name, lowest)} to "
                f"{_text(name, highest)}: give all ranks the same"
            )


def _text(name: str, value: int) -> str:
    if name == "role":
        return _ROLES[value].value
    return str(bool(value)).lower() if name == "late_scheduling" else str(value)
