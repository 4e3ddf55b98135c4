"""The engine's checks of a model directory, as `disagg doctor` asks for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli import model_check

MODEL = Path(__file__).parents[3] / "models" / "tiny-v4"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    shutil.copytree(MODEL, directory)
    return directory


def change(directory: Path, **values: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.medium
def test_a_good_model() -> None:
    assert model_check.check_config(MODEL).startswith("deepseek_v4, ")
    assert model_check.check_weights(MODEL).startswith("every tensor is there")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_attention_heads": 7}, "num_attention_heads is 7"),
        ({"hidden_size": "x"}, "hidden_size is 'x'"),
        ({"o_groups": 3}, "o_groups = 3"),
        ({"model_type": "llama"}, "'llama' is not served"),
    ],
)
def test_a_config_that_cannot_be(model: Path, values: dict[str, object], message: str) -> None:
    change(model, **values)
    with pytest.raises(ValueError, match=message):
        model_check.check_config(model)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_size": 100}, "config.json calls for"),
        ({"moe_intermediate_size": 8}, "config.json calls for"),
    ],
)
def test_tensors_of_another_model(model: Path, values: dict[str, object], message: str) -> None:
    change(model, **values)
    model_check.check_config(model)
    with pytest.raises(ValueError, match=message):
        model_check.check_weights(model)


def test_a_model_beyond_this_memory_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_check, "_free_memory", lambda: 1 << 20)
    assert "do not fit in this memory" in model_check.check_weights(MODEL)
