"""Prompts of conversations for models that come without a chat template."""
