"""What crosses layers lives for one pass."""

from engine.model.layers import StepCarry


def test_two_passes_share_nothing() -> None:
    first, second = StepCarry(), StepCarry()
    first.selections[2] = None
    assert second.selections == {}
