"""Collectives of a step: what a layout predicts, and what a rank recorded."""

from engine.parallel.ledger.predict import (
    BF16_WIRE,
    FLOAT32_WIRE,
    FP8_WIRE,
    Line,
    Medium,
    StepModel,
    StepShape,
    WireFormat,
    as_recorded,
    num_device_collectives,
    predict_step,
)
from engine.parallel.ledger.record import (
    Entry,
    Ledger,
    LedgerTotals,
    RecordingDispatcher,
    RecordingRowGroup,
    RecordingVote,
)

__all__ = [
    "BF16_WIRE",
    "FLOAT32_WIRE",
    "FP8_WIRE",
    "Entry",
    "Ledger",
    "LedgerTotals",
    "Line",
    "Medium",
    "RecordingDispatcher",
    "RecordingRowGroup",
    "RecordingVote",
    "StepModel",
    "StepShape",
    "WireFormat",
    "as_recorded",
    "num_device_collectives",
    "predict_step",
]
