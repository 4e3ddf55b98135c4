"""How prefill goes on from what a look-up found: the cheaper of two exact ways. Pure.

    blocks      |###|###|###|###|###|###|...|     stored: num_blocks = 6
    states              S                         resume_blocks = 2
    from state          |---computed----------->  blocks [0, 2) and the state are read
    replay                    |~~~~~~~~~|------>  blocks [0, 6) are read, the last tokens before
                                                  their end run once more to rebuild windows

Both give the same bits; the price is in tokens that run. The balancer prices a prompt by the same
function that prefill loads by.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.lookup import PrefixMatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlan:
    """What is read of a stored prefix, and what of it runs all the same.

    Attributes:
        num_blocks: Leading blocks to read.
        num_tokens: Their tokens.
        replay_tokens: The last of these tokens that run once more; 0 where the boundary state
            behind the last block is read instead.
    """

    num_blocks: int
    num_tokens: int
    replay_tokens: int = 0

    @property
    def saved_tokens(self) -> int:
        """Tokens of the prefix that need no computing."""
        return self.num_tokens - self.replay_tokens

    @property
    def replay_from(self) -> int | None:
        """First token of the replay; None where there is none."""
        return self.saved_tokens if self.replay_tokens else None


def plan_resume(
    match: PrefixMatch, *, block_tokens: int, window_replay_tokens: int | None
) -> ResumePlan:
    """Returns the way that runs fewer tokens; of equal ones that from a state, which reads less.

    A replay at the greatest block end is the cheapest replay, and the latest state the cheapest
    state, so these two are all there is to compare.

    Args:
        match: What is stored.
        block_tokens: Tokens of a block, at least 1.
        window_replay_tokens: Tokens that must run before a block end for windows to be exact there;
            None where windows cannot be rebuilt.
    """
    stored, resumable = match.num_blocks * block_tokens, match.resume_blocks * block_tokens
    if window_replay_tokens is not None and stored - window_replay_tokens > resumable:
        return ResumePlan(
            num_blocks=match.num_blocks, num_tokens=stored, replay_tokens=window_replay_tokens
        )
    return ResumePlan(num_blocks=match.resume_blocks, num_tokens=resumable)
