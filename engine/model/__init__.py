"""DeepSeek-V4 and V4.1 models, told apart by their config."""

from engine.model.config import LayerConfig, LayerKind, ModelConfig, ModelConfigError

__all__ = ["LayerConfig", "LayerKind", "ModelConfig", "ModelConfigError"]
