"""The leader's side of an engine of several ranks: a runner whose calls the followers repeat.

Followers hold the same KV and take part in every collective of a step. So everything that changes
state goes to them: steps, placeholders included, images, emptied slots and what is done before a
step. What only reads (exports) and what is decided (scheduling, sampling) stays here.

Invariants:
- A step reaches the followers before the leader runs it, since they share its collectives.
- An image or an emptied slot reaches them after the leader has taken it, so that what is refused
  here, which costs one request, never reaches a follower; there it would cost the world.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.handoff import SequenceImage
from engine.parallel.plans.messages import BeginStep, ImportImage, ResetSlot, RunStep, Stop, encode
from engine.parallel.plans.queue import PlanQueue
from engine.plan import AgreedStep, Runner, StepPlan, StepResult


class LeadingRunner:
    """The `Runner` of a leader.

    Args:
        runner: of this rank.
        queue: this rank's end of the queue to its followers.
    """

    def __init__(self, runner: Runner, queue: PlanQueue) -> None:
        """Sends nothing yet."""
        self._runner = runner
        self._queue = queue

    def begin_step(self, agreed: AgreedStep) -> None:
        """Tells the followers that an agreed step begins.

        Raises:
            GroupError: a follower does not keep up, or the world is lost; so do all sends.
        """
        self._queue.put(encode(BeginStep(agreed)))

    def run(self, plan: StepPlan) -> StepResult:
        """See `Runner.run`."""
        self._queue.put(encode(RunStep(plan)))
        return self._runner.run(plan)

    def export_image(
        self, block_table: Sequence[int], state_slot: int, num_tokens: int, *, blocks: bool = True
    ) -> SequenceImage:
        """See `Runner.export_image`."""
        return self._runner.export_image(block_table, state_slot, num_tokens, blocks=blocks)

    def export_blocks(self, page_ids: Sequence[int]) -> list[bytes]:
        """See `Runner.export_blocks`."""
        return self._runner.export_blocks(page_ids)

    def export_state(self, state_slot: int, num_tokens: int) -> bytes:
        """See `Runner.export_state`."""
        return self._runner.export_state(state_slot, num_tokens)

    def import_image(
        self, image: SequenceImage, block_table: Sequence[int], state_slot: int
    ) -> None:
        """See `Runner.import_image`."""
        self._runner.import_image(image, block_table, state_slot)
        self._queue.put(encode(ImportImage(image, tuple(block_table), state_slot)))

    def reset_slot(self, state_slot: int) -> None:
        """See `Runner.reset_slot`."""
        self._runner.reset_slot(state_slot)
        self._queue.put(encode(ResetSlot(state_slot)))

    def stop(self) -> None:
        """Tells the followers that no more calls come; the last one."""
        self._queue.put(encode(Stop()))
