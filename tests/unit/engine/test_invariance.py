"""The self-test on this machine, and with an operation that depends on its neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disagg_kernels import select_kernels
from disagg_kernels.reference import OPERATIONS
from engine.config import SettingsError
from engine.invariance import require_invariance
from engine.model.config import ModelConfig
from tests.fakes.kernels import kernels_with

CONFIG = ModelConfig.load(Path(__file__).parents[3] / "models" / "tiny-v4")


@pytest.mark.medium
@pytest.mark.parametrize(("attn_tp", "moe_tp"), [(1, 1), (2, 1), (2, 4)])
def test_rows_do_not_depend_on_their_neighbours_here(attn_tp: int, moe_tp: int) -> None:
    require_invariance(select_kernels("cpu"), CONFIG, attn_tp=attn_tp, moe_tp=moe_tp)


@pytest.mark.medium
def test_an_operation_that_depends_on_its_rows_is_named_with_a_way_out() -> None:
    def linear(x: Any, *rest: Any) -> Any:
        return OPERATIONS["linear"](x, *rest) + 1e-6 * x.shape[0]

    with pytest.raises(SettingsError, match=r"linear .* Set engine.batch_invariant to false"):
        require_invariance(kernels_with(linear=linear), CONFIG)
