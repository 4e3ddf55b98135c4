"""Sizes of models and GPUs, and whether one fits the other under a layout."""
