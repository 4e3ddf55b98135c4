"""Names of the transports between ranks, and what those need that are not everywhere.

A backend carries expert rows, votes and shared rows. `shm` and `gloo` work on any host. `deep_ep`
is the place of a dispatcher between GPUs: its rows would go through `Dispatcher` like all others,
while votes and plans stay on the host. Its adapter is not part of this version, so it is refused
before any rank starts, with everything that is missing. Loads no torch.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from engine.parallel.errors import BackendMissing

HOST_BACKENDS: Final = ("gloo", "shm")
DEVICE_BACKENDS: Final = ("deep_ep",)

_GPU_CONTROL: Final = Path("/dev/nvidiactl")


def require_backend(name: str) -> None:
    """Checks that ranks of this host can talk through a backend.

    Raises:
        BackendMissing: a known one that cannot run here; names all that is missing.
        ValueError: an unknown one.
    """
    if name in HOST_BACKENDS:
        return
    if name not in DEVICE_BACKENDS:
        known = ", ".join((*HOST_BACKENDS, *DEVICE_BACKENDS))
        raise ValueError(f"backend {name!r} is unknown; known: {known}")
    missing = ["its adapter to the dispatch port, which this version does not have"]
    if not _GPU_CONTROL.exists():
        missing.append(f"a GPU for each rank ({_GPU_CONTROL} is not there)")
    if find_spec(name) is None:
        missing.append(f"the package {name}, which is not installed")
    raise BackendMissing(
        f"backend {name} dispatches rows between GPUs and needs {'; '.join(missing)}: use shm, or "
        "gloo"
    )
