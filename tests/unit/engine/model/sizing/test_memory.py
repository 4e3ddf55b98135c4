"""Memory of one rank: the sum, what binds, and what sharing saves."""

import pytest

from engine.model.sizing.catalog import read_config, read_gpu
from engine.model.sizing.memory import plan_memory
from engine.model.sizing.sizes import ModelSizes
from engine.parallel.layout import ExpertSlots, Layout

H200 = read_gpu("h200")


def plan(name, layout, gpu=H200, m=1):
    sizes = ModelSizes.from_config(read_config(name))
    slots = None
    if sizes.num_experts:
        slots = ExpertSlots(num_logical=sizes.num_experts, ep=layout.ep, min_redundant=m)
    return plan_memory(sizes, layout, slots, gpu)


@pytest.mark.parametrize(("ep", "local"), [(8, 49), (64, 7)])
def test_experts_are_what_wide_parallelism_shares(ep, local):
    found = plan("v4.1-flash", Layout(dp=ep, ep=ep))
    assert found.weights["experts"] == 40 * local * 18_800_640
    assert found.is_fitting
    assert found.binds == "kv"
    assert found.free_bytes == int(141e9 * 0.9) - found.weight_bytes
    # Two tables of 264 B a row, in host memory.
    assert found.host_table_bytes == pytest.approx(2 * 384.01e6 * 264 / ep, rel=1e-4)


def test_weights_that_do_not_fit_name_what_binds():
    found = plan("v4.1-flash", Layout(dp=2, ep=2))
    assert not found.is_fitting
    assert found.binds == "experts"
    assert found.max_sequences(1000) == 0
    assert plan("llama3-70b", Layout()).binds == "mlp"


def test_attention_tp_divides_heads_and_dense_layers():
    one, eight = (plan("llama3-70b", Layout(attn_tp=width)) for width in (1, 8))
    assert eight.weights["mlp"] == one.weights["mlp"] // 8
    assert eight.weights["embeddings"] == one.weights["embeddings"]
    assert eight.is_fitting
    # KV heads divide, a shared latent does not.
    assert eight.kv_bytes_per_token == one.kv_bytes_per_token / 8
    latent = plan("v4.1-flash", Layout(dp=4, attn_tp=2, ep=8))
    assert latent.kv_bytes_per_token == 890


def test_sequences_take_state_and_tokens():
    found = plan("v4.1-flash", Layout(dp=64, ep=64))
    each = 43 * 67_584 + 3 * 4096 + 890 * 100_000
    assert found.max_sequences(100_000) == found.free_bytes // each
    assert found.max_sequences(100_000) > 100
