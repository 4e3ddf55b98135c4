"""Small shared pieces: what layers of one forward pass hand to each other."""

from dataclasses import dataclass, field

from engine.step_inputs import Selection


@dataclass(slots=True)
class StepCarry:
    """What crosses layers within one forward pass and does not survive it.

    Attributes:
        selections: By index source layer. A layer that reuses an earlier layer's choice reads it
            here; in V4 every CSA layer makes its own.
    """

    selections: dict[int, Selection | None] = field(default_factory=dict)
