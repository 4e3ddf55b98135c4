"""DeepSeek-V4 and V4.1 models, told apart by their config."""

from engine.model.config import LayerConfig, LayerKind, ModelConfig, ModelConfigError
from engine.model.decoder import Decoder
from engine.model.weights import CheckpointError, load_weights

__all__ = [
    "CheckpointError",
    "Decoder",
    "LayerConfig",
    "LayerKind",
    "ModelConfig",
    "ModelConfigError",
    "load_weights",
]
