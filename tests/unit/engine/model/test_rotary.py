"""Rotary tables: the released frequencies and the angle of every position."""

import math

import pytest
import torch

from engine.model.config import ModelConfig, YarnConfig
from engine.model.rotary import RotaryTables, frequencies, yarn_range
from tests.fakes.models import GOLDEN
from tests.fakes.vectors import vectors

RELEASED = vectors("yarn")["released"]


def released_yarn() -> YarnConfig:
    inputs = RELEASED["inputs"]
    return YarnConfig(
        factor=inputs["factor"],
        beta_fast=inputs["beta_fast"],
        beta_slow=inputs["beta_slow"],
        original_length=inputs["original"],
    )


def test_the_released_frequencies() -> None:
    inputs, expected = RELEASED["inputs"], RELEASED["expected"]
    found = frequencies(inputs["theta"], inputs["rope_dim"], released_yarn())
    assert found.dtype is torch.float64
    assert found.tolist() == pytest.approx(expected["frequencies"], rel=1e-12)
    assert yarn_range(inputs["theta"], inputs["rope_dim"], released_yarn()) == (
        expected["low"],
        expected["high"],
    )


def test_without_blending_the_frequencies_are_a_geometric_series() -> None:
    found = frequencies(10000.0, 8, None)
    assert found.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001], rel=1e-12)


def test_tables_hold_the_rotation_of_every_position() -> None:
    config = ModelConfig.load(GOLDEN / "v4_base")
    tables = RotaryTables(config)
    for table, theta, yarn in (
        (tables.window, config.rope_theta, None),
        (tables.long, config.compress_rope_theta, config.yarn),
    ):
        assert table.shape == (config.max_position_embeddings, config.rope_head_dim // 2)
        assert table.dtype is torch.complex64
        for position in (0, 1, 17, 4095):
            for pair, frequency in enumerate(frequencies(theta, 8, yarn).tolist()):
                angle = position * frequency
                found = complex(table[position, pair])
                assert found == pytest.approx(complex(math.cos(angle), math.sin(angle)), abs=1e-7)
