"""Moves the state of sequences between device pages, host memory and exports.

Runs between the agreement on a step and its end, on the engine thread. It holds no collectives, so
whatever goes wrong here is the matter of one sequence; the engine fails that one and goes on.
"""

from __future__ import annotations

from engine.block_manager import BlockManager
from engine.config import CacheSize
from engine.handoff import SequenceImage
from engine.plan import Runner
from engine.schedule import Preemption
from engine.sequence import Sequence


class StateMover:
    """Carries out what the scheduler decided about memory.

    Args:
        runner: reads and writes pages and slots.
        blocks: who has which.
        cache: block size.
    """

    def __init__(self, runner: Runner, blocks: BlockManager, cache: CacheSize) -> None:
        self._runner = runner
        self._blocks = blocks
        self._cache = cache
        self.swapped_bytes = 0

    def swap_out(self, preemption: Preemption) -> None:
        """Copies a preempted sequence to host memory, before its pages are written again."""
        sequence, table = preemption.sequence, preemption.block_table
        if preemption.num_computed < sequence.replay_end:
            # Blocks ahead of the replay are kept, and with them the place where it stopped.
            blocks = self._runner.export_blocks(
                table[: sequence.replay_end // self._cache.block_tokens]
            )
            image = SequenceImage(
                num_tokens=sequence.replay_end,
                blocks=tuple(blocks),
                partial=b"",
                state=self._runner.export_state(preemption.state_slot, preemption.num_computed),
                replay_from=preemption.num_computed,
            )
        else:
            image = self._runner.export_image(table, preemption.state_slot, preemption.num_computed)
        sequence.image = image
        self.swapped_bytes += image.num_bytes

    def load(self, sequence: Sequence) -> None:
        """Fills the memory of an admitted sequence: with its image, or with nothing."""
        state_slot = self._blocks.state_slot(sequence.request_id)
        image = sequence.image
        if image is None:
            self._runner.reset_slot(state_slot)
            return
        table = self._blocks.block_table(sequence.request_id)
        self._runner.import_image(
            image, table[: self._cache.pages_for(image.num_tokens)], state_slot
        )
        sequence.drop_image()

    @staticmethod
    def exports_at(sequence: Sequence, num_computed: int) -> bool:
        """Says whether `export` has something to do once that many tokens have KV."""
        return sequence.request.export is not None and num_computed <= sequence.num_given

    def export(self, sequence: Sequence) -> None:
        """Gives what the last step completed to the export of the request, if it has one."""
        export = sequence.request.export
        end = sequence.num_computed
        if export is None or not self.exports_at(sequence, end):
            return
        block_tokens = self._cache.block_tokens
        table = self._blocks.block_table(sequence.request_id)
        slot = self._blocks.state_slot(sequence.request_id)
        first, last = sequence.num_exported_blocks, end // block_tokens
        if last > first:
            payloads = self._runner.export_blocks(table[first:last])
            for block_idx, payload in enumerate(payloads, start=first):
                export.save_block(block_idx, payload)
            sequence.num_exported_blocks = last
        if end in sequence.boundaries:
            export.save_state(end, self._runner.export_state(slot, end))
        if end == sequence.num_given:
            tail = self._runner.export_image(
                table[: self._cache.pages_for(end)], slot, end, blocks=False
            )
            export.save_tail(end, bytes(tail.partial), bytes(tail.state))
