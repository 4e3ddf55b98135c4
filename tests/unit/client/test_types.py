"""The client's values."""

from __future__ import annotations

import dataclasses

import pytest

import client
from client import Sampling, Timing
from disagg.v1 import common_pb2


def test_the_package_exports_what_it_lists() -> None:
    assert client.__all__ == sorted(client.__all__)
    assert all(hasattr(client, name) for name in client.__all__)


def test_names_are_those_of_the_wire() -> None:
    for ours, wire in ((Timing, common_pb2.Timing), (Sampling, common_pb2.SamplingParams)):
        fields = {field.name for field in dataclasses.fields(ours)}
        assert fields <= {field.name for field in wire.DESCRIPTOR.fields}
    missing = {field.name for field in common_pb2.SamplingParams.DESCRIPTOR.fields} - {
        field.name for field in dataclasses.fields(Sampling)
    }
    assert missing == {"n"}  # one answer a call


def test_values_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sampling().seed = 3  # type: ignore[misc]
