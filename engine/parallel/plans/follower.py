"""The followers' side of an engine of several ranks: repeat the leader's calls until it stops."""

from __future__ import annotations

from collections.abc import Callable

from engine.parallel.plans.messages import (
    BeginStep,
    Call,
    ImportImage,
    ResetSlot,
    RunStep,
    decode,
)
from engine.parallel.plans.queue import PlanQueue
from engine.plan import AgreedStep, Runner


class Follower:
    """Repeats the leader's calls on this rank's runner. One thread.

    Args:
        runner: of this rank.
        queue: this rank's end of the leader's queue.
        on_step: what is done before a step, as on the leader.
        on_failure: called when this rank is lost, so that nobody waits for it.
    """

    def __init__(
        self,
        runner: Runner,
        queue: PlanQueue,
        *,
        on_step: Callable[[AgreedStep], None],
        on_failure: Callable[[], None],
    ) -> None:
        """Waits for nothing yet."""
        self._runner = runner
        self._queue = queue
        self._on_step = on_step
        self._on_failure = on_failure

    def follow(self) -> None:
        """Repeats calls until the leader stops.

        Raises:
            GroupError: the world is lost.
            Exception: what a call raised here, though the leader went on: this rank is lost.
        """
        try:
            while self._repeat(decode(self._queue.take())):
                pass
        except BaseException:
            self._on_failure()
            raise

    def _repeat(self, call: Call) -> bool:
        """Repeats a call; False when there are no more."""
        if isinstance(call, RunStep):
            # The logits are the leader's to sample from.
            self._runner.run(call.plan)
        elif isinstance(call, BeginStep):
            self._on_step(call.agreed)
        elif isinstance(call, ImportImage):
            self._runner.import_image(call.image, call.block_table, call.state_slot)
        elif isinstance(call, ResetSlot):
            self._runner.reset_slot(call.state_slot)
        else:
            return False
        return True
