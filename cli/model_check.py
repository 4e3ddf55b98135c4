"""Would a service start with this model directory? The checks of a start, by loading it.

The engine is what decides, so nothing is checked twice in two ways: the config is read, the KV
layout derived, and every tensor read with the name, the shape and the type that the config calls
for, exactly as a rank does. Needs the engine's packages; the caller says what happens without.
"""

from __future__ import annotations

import os
from pathlib import Path

from cli.output import size
from engine.build import build_engine, kv_layout
from engine.config import EngineRole, EngineSettings

_KV_BYTES = 16 << 20
_ROWS = 16
# A loaded FP4 checkpoint has eight times its bytes; twice that leaves the machine some air.
_ROOM = 16


def check_config(directory: Path) -> str:
    """Reads the config and derives the KV layout; returns both in one phrase.

    Raises:
        ValueError: The engine's words on what is wrong.
    """
    layout = kv_layout(directory)
    return f"{layout.config.model_type}, {layout.config.num_layers} layers, {directory}"


def check_weights(directory: Path) -> str:
    """Loads the model as an engine of one rank; returns what was checked in one phrase.

    Raises:
        ValueError: The engine's words on what is wrong.
    """
    length = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    if length * _ROOM > _free_memory():
        return f"tensors not compared with config.json: {size(length)} do not fit in this memory"
    built = build_engine(
        directory,
        EngineSettings(
            role=EngineRole.NORMAL,
            kv_memory_bytes=_KV_BYTES,
            max_num_seqs=1,
            max_num_batched_tokens=_ROWS,
            max_waiting=1,
        ),
    )
    built.ports.close()
    return "every tensor is there, with the shape config.json calls for"


def _free_memory() -> int:
    """Bytes of memory that nobody uses."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
