"""Moves experts between ranks by the load of recent steps, at steps all ranks agree on.

Every rank counts the same agreed steps, so the step before which experts move needs no vote. Then
counts are summed over the ranks, each rank computes the same plan and loads its new experts from
the checkpoint. The step waits meanwhile. Tokens do not change, since replicas hold equal weights.
"""

import logging
from dataclasses import replace

import numpy as np

from engine.model.decoder import Decoder
from engine.model.experts import ExpertPlacement
from engine.parallel.dispatch import Dispatcher, DispatchShape
from engine.parallel.experts import LoadWindow, Placement, imbalance, plan
from engine.parallel.experts.exchange import sum_over_ranks
from engine.parallel.layout import ExpertSlots
from engine.statistics import ExpertMoves

logger = logging.getLogger(__name__)


class ExpertRebalancer:
    """Owns the placements of a model's layers. Called by the step loop before every step.

    Args:
        model: Loaded with `loads` and with the initial placement of `slots`.
        loads: What the model's layers count in.
        slots: Slots of a layer.
        dispatcher: Of the expert group.
        shape: What the dispatcher was opened with.
        interval_steps: Experts move before every step whose number is a multiple of it.
    """

    def __init__(
        self,
        model: Decoder,
        loads: LoadWindow,
        slots: ExpertSlots,
        dispatcher: Dispatcher,
        shape: DispatchShape,
        *,
        interval_steps: int,
    ) -> None:
        if interval_steps < 1:
            raise ValueError(
                f"interval_steps is {interval_steps}: give at least 1, or do not rebalance"
            )
        self._model = model
        self._loads = loads
        self._slots = slots
        self._dispatcher = dispatcher
        self._shape = shape
        self._interval_steps = interval_steps
        self._num_steps = 0
        self.placements = [Placement.initial(slots)] * model.config.num_layers
        self.moves = ExpertMoves()

    def before_step(self) -> None:
        """Counts a step, and moves experts when it is time; a collective then.

        Raises:
            GroupError: another rank is late or lost.
            CheckpointError: the checkpoint can no longer be read.
        """
        self._num_steps += 1
        self.moves = replace(self.moves, steps_since=self.moves.steps_since + 1)
        if self._num_steps % self._interval_steps == 0:
            self._move()
        self._loads.add_step()

    def _move(self) -> None:
        shape = self._shape
        window = sum_over_ranks(
            self._dispatcher,
            self._loads.counts(),
            hidden=shape.hidden,
            top_k=shape.top_k,
            max_tokens=shape.max_tokens,
            result_hidden=shape.result_hidden,
        )
        planned = [plan(window[:, layer], self._slots) for layer in range(window.shape[1])]
        before, after = (
            sum(imbalance(window[:, layer], placed) for layer, placed in enumerate(placements))
            / len(planned)
            for placements in (self.placements, planned)
        )
        self._model.adopt(
            [
                ExpertPlacement(
                    num_logical=self._slots.num_logical,
                    num_ranks=self._slots.ep,
                    min_redundant=self._slots.min_redundant,
                    placement=placement,
                )
                for placement in planned
            ]
        )
        changed = sum(
            int(np.count_nonzero(old.physical_to_logical != new.physical_to_logical))
            for old, new in zip(self.placements, planned, strict=True)
        )
        self.placements = planned
        self.moves = ExpertMoves(
            moves=self.moves.moves + 1, changed_slots=self.moves.changed_slots + changed
        )
        logger.info(
            "experts moved before step %d: %d slots changed, highest over mean rank load %.3f, "
            "was %.3f",
            self._num_steps,
            changed,
            after,
            before,
        )
