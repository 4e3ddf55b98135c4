"""Accelerators by name: peaks as their makers state them, and the share of them we expect to reach.

The figures and where they come from: `data/README.md`.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from engine.model.sizing.catalog import Gpu

_DATA = Path(__file__).parent / "data" / "hardware.json"
_SHARES = ("compute_efficiency", "hbm_efficiency", "link_efficiency")


class ProfileError(ValueError):
    """A profile that is unknown or holds a value that cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One accelerator and its links.

    Args:
        name: As on the command line.
        memory_bytes, ranks_per_node: As in the catalogue of the sizes.
        fp8_tflops: Peak at FP8 rate without sparsity; twice the bf16 peak where there is no FP8.
        hbm_gbytes_per_s: Peak memory bandwidth.
        nvlink_gbytes_per_s: Scale-up bandwidth of a rank, one direction.
        nic_gbits_per_s: Network bandwidth of a rank, each direction.
        compute_efficiency, hbm_efficiency, link_efficiency: Share of the peaks that is reached.
        layer_overhead_us: Launches and collectives of a layer that nothing hides.
    """

    name: str
    memory_bytes: int
    ranks_per_node: int
    fp8_tflops: float
    hbm_gbytes_per_s: float
    nvlink_gbytes_per_s: float
    nic_gbits_per_s: float
    compute_efficiency: float
    hbm_efficiency: float
    link_efficiency: float
    layer_overhead_us: float

    def __post_init__(self) -> None:
        """Refuses what cannot be."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "name":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ProfileError(
                    f"hardware {self.name}: {field.name} is {value!r}; give a number above 0"
                )
            if field.name in _SHARES and value > 1:
                raise ProfileError(
                    f"hardware {self.name}: {field.name} is {value!r}; a share of a peak is at "
                    "most 1"
                )

    @property
    def flops_per_s(self) -> float:
        """FP8-equivalent FLOPs a second that are reached."""
        return self.fp8_tflops * 1e12 * self.compute_efficiency

    @property
    def hbm_bytes_per_s(self) -> float:
        """Memory bytes a second that are reached."""
        return self.hbm_gbytes_per_s * 1e9 * self.hbm_efficiency

    @property
    def nvlink_bytes_per_s(self) -> float:
        """Scale-up bytes a second and direction that are reached."""
        return self.nvlink_gbytes_per_s * 1e9 * self.link_efficiency

    @property
    def nic_bytes_per_s(self) -> float:
        """Network bytes a second and direction that are reached."""
        return self.nic_gbits_per_s * 1e9 / 8 * self.link_efficiency

    @property
    def gpu(self) -> Gpu:
        """What the memory plan needs."""
        return Gpu(
            name=self.name, memory_bytes=self.memory_bytes, ranks_per_node=self.ranks_per_node
        )


def hardware_names() -> tuple[str, ...]:
    """Names of the profiles that come with the project."""
    return tuple(sorted(json.loads(_DATA.read_text(encoding="utf-8"))))


def read_hardware(name: str, changes: dict[str, object] | None = None) -> Hardware:
    """Returns a named profile, with some of its fields replaced.

    Raises:
        ProfileError: an unknown name or field, or a value that cannot be.
    """
    known = json.loads(_DATA.read_text(encoding="utf-8"))
    if name not in known:
        raise ProfileError(f"hardware {name!r} is unknown; known: {', '.join(sorted(known))}")
    fields = {field.name for field in dataclasses.fields(Hardware)} - {"name"}
    if unknown := sorted(set(changes or {}) - fields):
        raise ProfileError(
            f"hardware {name}: there is no field {unknown[0]!r}; fields: "
            f"{', '.join(sorted(fields))}"
        )
    return Hardware(name=name, **(known[name] | (changes or {})))
