"""Which implementation serves which operation: chosen once per process, reported once.

`select_kernels` builds a `Kernels` object whose methods are the contracts of the topic modules
bound to one implementation each. Nothing here is global: whoever runs a model holds a `Kernels`.

Preference `auto` takes the first backend of the device's list that has the operation and passes
its probe; the reference comes last and has every operation.
"""

import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from disagg_kernels import attention, compress, dense, index, kv_blocks, mhc, moe, quant

logger = logging.getLogger(__name__)

Implementation = Callable[..., Any]

CONTRACTS: Mapping[str, Callable[..., Any]] = {
    "rms_norm": dense.rms_norm,
    "apply_rope": dense.apply_rope,
    "linear": dense.linear,
    "group_linear": dense.group_linear,
    "hc_pre": mhc.hc_pre,
    "hc_mix": mhc.hc_mix,
    "hc_post": mhc.hc_post,
    "hc_head": mhc.hc_head,
    "route": moe.route,
    "swiglu": moe.swiglu,
    "grouped_experts": moe.grouped_experts,
    "compress": compress.compress,
    "index_logits": index.index_logits,
    "select_topk": index.select_topk,
    "sparse_attention": attention.sparse_attention,
    "gather_rows": kv_blocks.gather_rows,
    "quantize_dequantize": quant.quantize_dequantize,
    "hadamard": quant.hadamard,
}

# Order of preference per device; the Triton and vendor backends take their places before it.
_BACKENDS: Mapping[str, tuple[str, ...]] = {"cpu": ("reference",), "cuda": ("reference",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Why an operation is served by a backend."""

    operation: str
    backend: str
    reason: str


class Kernels:
    """The operations of one device, each bound to its implementation.

    Every name of `CONTRACTS` is an attribute; calling it checks the arguments and runs the chosen
    implementation. Contracts and implementations are called alike, so the checks can be left out
    (`checked=False`): a step calls some hundred operations, whose shapes follow from the model.
    """

    def __init__(
        self,
        device: str,
        table: Mapping[str, tuple[Implementation, Choice]],
        *,
        checked: bool = True,
    ) -> None:
        missing = sorted(set(CONTRACTS) - set(table))
        if missing:
            raise ValueError(f"no implementation on {device} for {', '.join(missing)}")
        self.device = device
        self.choices = tuple(choice for _, choice in table.values())
        for name, (implementation, _) in table.items():
            bound = partial(CONTRACTS[name], implementation) if checked else implementation
            setattr(self, name, bound)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"no operation {name!r}; known: {', '.join(sorted(CONTRACTS))}")


def _load(backend: str) -> Mapping[str, Implementation]:
    module = importlib.import_module(f"disagg_kernels.{backend}")
    table: Mapping[str, Implementation] = module.OPERATIONS
    return table


def select_kernels(
    device: str = "cpu", *, preference: str = "auto", checked: bool = True
) -> Kernels:
    """Returns the operations for a device.

    Args:
        device: `cpu` or `cuda`.
        preference: `auto`, or the name of one backend that must serve every operation.
        checked: Whether calls check their arguments.

    Raises:
        ValueError: unknown device or backend; the message lists what exists.
    """
    if device not in _BACKENDS:
        raise ValueError(f"device {device!r} has no backend; known: {', '.join(_BACKENDS)}")
    names = _BACKENDS[device]
    if preference != "auto":
        if preference not in names:
            raise ValueError(
                f"kernel backend {preference!r} does not exist on {device}; "
                f"use auto or one of {', '.join(names)}"
            )
        names = (preference,)
    table: dict[str, tuple[Implementation, Choice]] = {}
    for backend in names:
        for name, implementation in _load(backend).items():
            reason = "requested" if preference != "auto" else f"first of {', '.join(names)}"
            choice = Choice(operation=name, backend=backend, reason=reason)
            table.setdefault(name, (implementation, choice))
    kernels = Kernels(device, table, checked=checked)
    logger.info(
        "kernels on %s: %s",
        device,
        ", ".join(f"{choice.operation}={choice.backend}" for choice in kernels.choices),
    )
    return kernels
