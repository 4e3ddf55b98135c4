"""The training pass, the starting weights and the published form, against the library's class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="the training scripts need transformers")

from safetensors import safe_open  # noqa: E402
from training.forward import Trainer  # noqa: E402
from training.publishing import published_config, published_state  # noqa: E402
from training.start import initialise, make_config  # noqa: E402

pytestmark = pytest.mark.medium

BUNDLED = Path(__file__).parents[4] / "models" / "tiny-v4"


@pytest.fixture(scope="module")
def model() -> Any:
    found = transformers.DeepseekV4ForCausalLM(make_config())
    initialise(found, 1)
    return found.eval()


def test_the_training_pass_is_the_function_of_the_library(model: Any) -> None:
    # More CSA entries than top-k: 192 / 4 = 48 > 32.
    ids = torch.randint(7, 2048, (2, 192), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, _ = Trainer(model).forward(ids, sparse=True)
        wanted = model(ids).logits
    assert torch.allclose(found, wanted, atol=2e-3, rtol=1e-3)


def test_every_weight_gets_a_gradient_and_the_indexer_its_own(model: Any) -> None:
    ids = torch.randint(7, 2048, (1, 192), generator=torch.Generator().manual_seed(0))
    logits, index_loss = Trainer(model).forward(ids, sparse=True)
    (logits.square().mean() + index_loss).backward()
    missing = [name for name, param in model.named_parameters() if param.grad is None]
    model.zero_grad()
    assert missing == []


def test_the_published_form_is_that_of_the_bundled_checkpoint(model: Any) -> None:
    state = published_state(model, torch.bfloat16)
    with safe_open(BUNDLED / "model.safetensors", "pt") as stored:
        wanted = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    assert {name: (t.shape, t.dtype) for name, t in state.items()} == {
        name: (t.shape, t.dtype) for name, t in wanted.items()
    }
    config = json.loads((BUNDLED / "config.json").read_text(encoding="utf-8"))
    found = json.loads(json.dumps(published_config(make_config(), torch.bfloat16)))
    config.pop("transformers_version"), found.pop("transformers_version")
    assert found == config
