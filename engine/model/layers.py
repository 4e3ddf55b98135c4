"""Small shared pieces: what layers of one forward pass hand to each other."""

from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class Selection:
    """Compressed entries a layer attends to, and which of them count.

    Attributes:
        pages, places: [rows, columns] int64 page and place of each entry (see `engine.kv_pool`).
        mask: [rows, columns] float32, 0 or -inf.
    """

    pages: torch.Tensor
    places: torch.Tensor
    mask: torch.Tensor


@dataclass(slots=True)
class StepCarry:
    """What crosses layers within one forward pass and does not survive it.

    Attributes:
        selections: By index source layer. A layer that reuses an earlier layer's choice reads it
            here; in V4 every CSA layer makes its own.
    """

    selections: dict[int, Selection] = field(default_factory=dict)
