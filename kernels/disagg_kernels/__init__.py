"""Tensor operations of the engine: contracts, implementations, and the choice between them.

Knows torch; knows no request, no scheduler and no process group. Every operation has a plain torch
twin in `reference`, which is its meaning; faster twins replace it per device (see `backend`).
"""

from disagg_kernels.backend import Kernels, select_kernels

__all__ = ["Kernels", "select_kernels"]
