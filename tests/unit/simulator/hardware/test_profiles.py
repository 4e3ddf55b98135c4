"""Accelerator profiles: known names, plausible figures, refusals."""

from __future__ import annotations

import pytest

from engine.model.sizing.catalog import gpu_names, read_gpu
from simulator.hardware.profiles import ProfileError, hardware_names, read_hardware


def test_the_four_named_profiles_are_there() -> None:
    assert {"a800", "h800", "h200", "gb200"} <= set(hardware_names())


@pytest.mark.parametrize("name", sorted(set(hardware_names()) & set(gpu_names())))
def test_memory_and_domain_agree_with_the_catalogue_of_sizes(name: str) -> None:
    assert read_hardware(name).gpu == read_gpu(name)


def test_rates_are_shares_of_peaks() -> None:
    h800 = read_hardware("h800", {"compute_efficiency": 0.5, "nic_gbits_per_s": 800})
    assert h800.flops_per_s == pytest.approx(0.5 * 1979e12)
    assert h800.nic_bytes_per_s == pytest.approx(100e9 * h800.link_efficiency)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("h900", {}, r"'h900' is unknown; known: a800"),
        ("h800", {"flops": 1.0}, r"no field 'flops'; fields: compute_efficiency"),
        ("h800", {"nic_gbits_per_s": 0}, r"nic_gbits_per_s is 0; give a number above 0"),
        ("h800", {"hbm_efficiency": 1.5}, r"hbm_efficiency is 1.5; a share of a peak is at most 1"),
        ("h800", {"memory_bytes": "80 GB"}, r"memory_bytes is '80 GB'"),
    ],
)
def test_what_cannot_be_is_refused(name: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        read_hardware(name, changes)
