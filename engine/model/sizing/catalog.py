"""Configs of released models and sizes of GPUs, as data files; no weights.

A model is named (`v4-flash`) or given as a checkpoint directory; both give the parsed config.json.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.config import ModelConfigError

_DATA = Path(__file__).parent / "data"
_CONFIGS = _DATA / "models"
_GPUS = _DATA / "gpus.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What a layout needs to know of a GPU.

    Args:
        name: As on the command line.
        memory_bytes: Device memory.
        ranks_per_node: GPUs that share one scale-up domain.
    """

    name: str
    memory_bytes: int
    ranks_per_node: int


def model_names() -> tuple[str, ...]:
    """Names of the released models whose configs are known."""
    return tuple(sorted(path.name.removesuffix(".json") for path in _CONFIGS.glob("*.json")))


def read_config(model: str) -> dict[str, Any]:
    """Returns the parsed config.json of a named model or a checkpoint directory.

    Raises:
        ModelConfigError: neither a known name nor a directory with a readable config.json.
    """
    path = _CONFIGS / f"{model}.json" if model in model_names() else Path(model) / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelConfigError(
            f"model {model!r} is neither a directory with a config.json nor one of "
            f"{', '.join(model_names())}"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelConfigError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelConfigError(f"{path} holds {type(raw).__name__}, wanted a JSON object")
    return raw


def gpu_names() -> tuple[str, ...]:
    """Names of the GPUs whose sizes are known."""
    return tuple(sorted(json.loads(_GPUS.read_text(encoding="utf-8"))))


def read_gpu(name: str) -> Gpu:
    """Returns the sizes of a named GPU.

    Raises:
        ModelConfigError: an unknown name.
    """
    known = json.loads(_GPUS.read_text(encoding="utf-8"))
    if name not in known:
        raise ModelConfigError(f"GPU {name!r} is unknown; known: {', '.join(sorted(known))}")
    return Gpu(name=name, **known[name])
