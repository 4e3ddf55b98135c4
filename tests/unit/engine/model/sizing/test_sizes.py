"""Sizes of released models: parameter totals by name, bytes per token, bytes per sequence."""

import copy

import pytest

from engine.model.config import ModelConfigError
from engine.model.sizing.catalog import read_config
from engine.model.sizing.sizes import ModelSizes
from tests.fakes.vectors import vectors

PARAMETERS = vectors("parameters")


def sizes(name):
    return ModelSizes.from_config(read_config(name))


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_vector(name):
    expected, found = PARAMETERS[name]["expected"], sizes(name)
    assert found.num_parameters == expected.get("total", expected.get("backbone"))
    assert found.engram_parameters == expected.get("engram", 0)
    assert (found.draft.parameters if found.draft else 0) == expected.get("dspark", 0)


def test_parameters_of_a_dense_model():
    found = sizes("llama3-70b")
    assert found.num_parameters == 70_553_706_496
    assert (found.num_experts, found.num_moe_layers, found.expert_bytes) == (0, 0, 0)


@pytest.mark.parametrize(
    ("name", "packed", "floats"),
    [
        ("v4-flash", 3850.25, 6880),
        ("v4-pro", 5511.4375, 9848),
        ("v4.1-flash", 890, 3200),
        ("llama3-70b", 327_680, 327_680),
    ],
)
def test_kv_bytes_per_token(name, packed, floats):
    assert sizes(name).kv_bytes_per_token == packed
    raw = copy.deepcopy(read_config(name))
    raw.pop("quantization_config", None)
    assert ModelSizes.from_config(raw).kv_bytes_per_token == floats


def test_state_bytes_per_sequence():
    # Windows of all layers, 20 HCA tails of 512 KiB, 21 CSA tails of 80 KiB.
    assert sizes("v4-flash").state_bytes_per_sequence == (
        43 * 74_752 + 20 * 512 * 1024 + 21 * 80 * 1024
    )
    # Windows of 40 layers and 3 draft stages, three pending pairs.
    assert sizes("v4.1-flash").state_bytes_per_sequence == 43 * 67_584 + 3 * 4096
    assert sizes("llama3-70b").state_bytes_per_sequence == 0


@pytest.mark.parametrize("name", ["expert-bytes"])
def test_bytes_of_an_expert_vector(name):
    vector = vectors("experts")[name]
    found = sizes("v4.1-flash")
    assert found.expert_weight_bytes == vector["expected"]["fp4_bytes"]
    assert found.expert_bytes == vector["expected"]["with_scale_per_32"]
    one_layer = found.num_experts * found.expert_weight_bytes
    assert one_layer == vector["expected"]["one_layer_bytes"]
    assert one_layer * found.num_moe_layers == vector["expected"]["all_layers_bytes"]


def test_rows_that_travel_between_context_ranks():
    found = sizes("v4.1-flash")
    assert found.window_row_bytes == 1024
    assert found.source_row_bytes == (4096, 4096, 4096, 1024)
    assert found.num_draft_stages == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2"}, "'gpt2' cannot be planned; known: deepseek_v4"),
        ({"q_lora_rank": "many"}, "cannot be read"),
        ({"hidden_size": None}, "cannot be read"),
    ],
)
def test_a_config_that_cannot_be_planned_is_refused(change, words):
    with pytest.raises(ModelConfigError, match=words):
        ModelSizes.from_config({**read_config("v4-flash"), **change})


def test_a_missing_key_is_named():
    raw = read_config("v4-flash")
    del raw["o_groups"]
    with pytest.raises(ModelConfigError, match=r"config\.json lacks 'o_groups'"):
        ModelSizes.from_config(raw)
