"""The choice of implementations: complete, reported, and refused with the list of what exists."""

import logging

import pytest
import torch

from disagg_kernels import Kernels, select_kernels
from disagg_kernels.backend import CONTRACTS, Choice
from disagg_kernels.reference import OPERATIONS


def test_the_reference_has_every_operation() -> None:
    assert set(OPERATIONS) == set(CONTRACTS)


def test_every_operation_is_an_attribute_and_its_choice_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "disagg_kernels.backend"):
        kernels = select_kernels("cpu")
    assert {choice.operation for choice in kernels.choices} == set(CONTRACTS)
    assert all(callable(getattr(kernels, name)) for name in CONTRACTS)
    assert all(f"{name}=reference" in caplog.text for name in CONTRACTS)
    assert kernels.choices[0].reason == "first of reference"


def test_a_named_backend_is_the_reason() -> None:
    kernels = select_kernels("cpu", preference="reference")
    assert {choice.reason for choice in kernels.choices} == {"requested"}


def test_unknown_names_are_refused_with_what_exists() -> None:
    with pytest.raises(ValueError) as caught:
        select_kernels("tpu")
    assert str(caught.value) == "device 'tpu' has no backend; known: cpu, cuda"
    with pytest.raises(ValueError) as caught:
        select_kernels("cpu", preference="fast")
    assert "'fast' does not exist on cpu; use auto or one of reference" in str(caught.value)


def test_a_table_with_a_hole_is_refused() -> None:
    choice = Choice(operation="any", backend="test", reason="test")
    table = {name: (fn, choice) for name, fn in OPERATIONS.items() if name != "route"}
    with pytest.raises(ValueError) as caught:
        Kernels("cpu", table)
    assert str(caught.value) == "no implementation on cpu for route"


def test_an_operation_that_does_not_exist_lists_those_that_do() -> None:
    with pytest.raises(AttributeError) as caught:
        select_kernels("cpu").matmul(torch.zeros(1))
    assert "no operation 'matmul'; known: apply_rope, compress" in str(caught.value)


def test_checks_can_be_left_out() -> None:
    checked, bare = select_kernels("cpu"), select_kernels("cpu", checked=False)
    x = torch.ones(2, 3)
    with pytest.raises(ValueError):
        checked.linear(x, torch.ones(4, 3))
    assert bare.linear(x, torch.ones(3, 4)).tolist() == [[3.0] * 4] * 2
    assert bare.linear is not checked.linear
