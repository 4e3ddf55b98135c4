"""What a leader sends, and when: steps before it runs them, memory after."""

import pytest
import torch

from engine.handoff import SequenceImage
from engine.parallel.plans.leader import LeadingRunner
from engine.parallel.plans.messages import (
    BeginStep,
    ImportImage,
    ResetSlot,
    RunStep,
    Stop,
    decode,
)
from engine.plan import AgreedStep, StepKind, StepResult, placeholder_plan

IMAGE = SequenceImage(num_tokens=3, blocks=(), partial=b"p", state=b"s")


class Log:
    """Both sides of a leader: its queue and its runner."""

    def __init__(self):
        self.entries = []
        self.refused = False

    def put(self, parts):
        self.entries.append(decode(b"".join(parts)))

    def run(self, plan):
        self.entries.append("run")
        return StepResult(logits=torch.empty(0, 8))

    def import_image(self, image, block_table, state_slot):
        if self.refused:
            raise ValueError("state has the wrong length")
        self.entries.append("import")

    def reset_slot(self, state_slot):
        self.entries.append("reset")

    def export_image(self, block_table, state_slot, num_tokens, *, blocks=True):
        return (block_table, state_slot, num_tokens, blocks)

    def export_blocks(self, page_ids):
        return [b"block" for _ in page_ids]

    def export_state(self, state_slot, num_tokens):
        return b"state"


def test_a_step_is_sent_before_it_runs():
    log = Log()
    leader = LeadingRunner(log, log)
    agreed = AgreedStep(kind=StepKind.DECODE, step=4, vote=(1, 0, 1))
    leader.begin_step(agreed)
    plan = placeholder_plan(StepKind.DECODE, 4)
    assert leader.run(plan).logits.shape == (0, 8)
    leader.stop()
    assert log.entries == [BeginStep(agreed), RunStep(plan), "run", Stop()]


def test_memory_is_sent_once_the_leader_has_taken_it():
    log = Log()
    leader = LeadingRunner(log, log)
    leader.reset_slot(2)
    leader.import_image(IMAGE, [7, 8], 1)
    assert log.entries == ["reset", ResetSlot(2), "import", ImportImage(IMAGE, (7, 8), 1)]


def test_what_the_leader_refuses_reaches_nobody():
    log = Log()
    log.refused = True
    with pytest.raises(ValueError, match="wrong length"):
        LeadingRunner(log, log).import_image(IMAGE, [7], 1)
    assert log.entries == []


def test_exports_stay_with_the_leader():
    log = Log()
    leader = LeadingRunner(log, log)
    assert leader.export_image([1], 2, 3, blocks=False) == ([1], 2, 3, False)
    assert leader.export_blocks([1, 2]) == [b"block", b"block"]
    assert leader.export_state(1, 5) == b"state"
    assert log.entries == []
