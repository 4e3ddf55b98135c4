"""Collectives of a step: every vector of the ledger by name, and the bytes of each line."""

import pytest

from engine.model.sizing.catalog import read_config
from engine.model.sizing.sizes import ModelSizes
from engine.parallel.layout import Layout
from engine.parallel.ledger import (
    FLOAT32_WIRE,
    FP8_WIRE,
    Medium,
    StepModel,
    StepShape,
    as_recorded,
    num_device_collectives,
    predict_step,
)
from engine.parallel.rows import PaddingMode
from engine.parallel.rows.modes import Combine, Path
from tests.fakes.vectors import vectors

VECTORS = vectors("ledger")
BYTES = VECTORS.pop("bytes per token and layer")
V41 = ModelSizes.from_config(read_config("v4.1-flash")).step_model()
WIDE, ONE = Layout(dp=64, ep=64), Layout(dp=8)
CONTEXT = Layout(dp=4, cp=2, ep=8)
SPLIT = Layout(dp=4, attn_tp=2, ep=8)
MAX, SUM = PaddingMode.MAX, PaddingMode.SUM
REDUCE, SCATTER = Combine.ALL_REDUCE, Combine.REDUCE_SCATTER

CONFIGURATIONS = {
    "decode two-phase": (WIDE, {}),
    "decode fused": (WIDE, {"is_fused": True}),
    "decode ep 1": (ONE, {}),
    "prefill two-phase cp 1": (Layout(dp=8, ep=8), {"is_prefill": True}),
    "prefill two-phase cp > 1": (CONTEXT, {"is_prefill": True}),
    "prefill fused cp > 1": (CONTEXT, {"is_prefill": True, "is_fused": True}),
    "prefill two-phase cp > 1 compact": (CONTEXT, {"is_prefill": True, "is_compact": True}),
    "prefill fused cp > 1 compact": (
        CONTEXT,
        {"is_prefill": True, "is_compact": True, "is_fused": True},
    ),
    "TP+EP reference": (SPLIT, {"path": Path.B, "cuts_rows": False}),
    "SGLang attn_tp 1, A2A": (Layout(dp=8, ep=8), {}),
    "path B": (SPLIT, {"path": Path.B}),
    "path A attn_tp 1": (ONE, {"path": Path.A, "padding": MAX}),
    "path A attn_tp > 1, equal-padded, all-reduce out": (
        SPLIT,
        {"path": Path.A, "padding": MAX, "combine": REDUCE},
    ),
    "path A attn_tp > 1, equal-padded, RS out": (
        SPLIT,
        {"path": Path.A, "padding": MAX, "combine": SCATTER},
    ),
    "path A attn_tp > 1, sum-padded": (
        SPLIT,
        {"path": Path.A, "padding": SUM, "combine": REDUCE},
    ),
}


def by_name(lines):
    return {(line.channel, line.operation): line for line in lines}


@pytest.mark.parametrize("name", VECTORS)
def test_ledger_vector(name):
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    layout, shape = CONFIGURATIONS[name]
    assert (V41.num_layers, V41.num_moe_layers) == (inputs["layers"], inputs["moe_layers"])

    lines = predict_step(layout, V41, StepShape(tokens=60, **shape))

    counts_kernels = "counts the 40 fused kernels" in VECTORS[name]["note"]
    found = num_device_collectives(lines, with_kernels=counts_kernels)
    assert found == expected["device_collectives"]
    named = by_name(lines)
    # One liveness collective: path A takes the rows of each group out of the same vector.
    [vote] = [line for line in lines if line.channel == "vote"]
    assert vote.operation == ("all_gather" if shape.get("path") is Path.A else "all_reduce")
    assert (vote.count, vote.medium, vote.num_bytes) == (1, Medium.HOST, 72)
    assert [line for line in lines if line.medium is Medium.HOST] == [vote]
    if "engram_fetches" in inputs:
        assert named["table", "fetch"].count == inputs["engram_fetches"]
    if "id gather" in VECTORS[name]["note"]:
        assert named["domain", "id_gather"].count == 1
    # Dense all-reduces need attention TP, or experts that every rank has a share of.
    if layout.attn_tp == 1 and shape.get("path") is not Path.A:
        assert not [o for c, o in named if o == "all_reduce" and c != "vote"]


def test_fused_kernels_are_counted_apart():
    lines = predict_step(WIDE, V41, StepShape(tokens=1, is_fused=True))
    assert [(line.operation, line.count) for line in lines if line.medium is Medium.KERNEL] == [
        ("fused", 40)
    ]


def test_bytes_vector():
    inputs, expected = BYTES["inputs"], BYTES["expected"]
    hidden = inputs["hidden"]
    assert FP8_WIRE.scale_group == inputs["fp8_scale_group"]
    assert inputs["targets"] * FP8_WIRE.dispatch_bytes(hidden) == expected["dispatch"]
    assert inputs["targets"] * FP8_WIRE.combine_bytes(hidden) == expected["combine"]
    model = StepModel(hidden=hidden, top_k=6, num_layers=40, num_moe_layers=inputs["layers"])
    lines = by_name(predict_step(WIDE, model, StepShape(tokens=inputs["rows"])))
    for operation in ("dispatch", "combine"):
        line = lines["experts", operation]
        assert line.num_bytes == expected[f"{operation}_step"]
        assert line.num_bytes // line.count == expected[f"{operation}_rows_layer"]


@pytest.mark.parametrize(("ep", "targets"), [(2, 2), (4, 4), (8, 6), (64, 6)])
def test_a_row_travels_once_to_each_rank_of_its_experts(ep, targets):
    model = StepModel(hidden=5120, top_k=6, num_layers=40, num_moe_layers=40)
    layout = Layout(dp=ep, ep=ep)
    lines = by_name(predict_step(layout, model, StepShape(tokens=60)))
    assert lines["experts", "dispatch"].num_bytes == 40 * 60 * targets * 5_280
    assert lines["experts", "combine"].num_bytes == 40 * 60 * targets * 10_240
    # This engine's transports carry a row for each of its choices.
    own = by_name(predict_step(layout, model, StepShape(tokens=60, wire=FLOAT32_WIRE)))
    assert own["experts", "combine"].num_bytes == 40 * 60 * 6 * 20_480


def test_bytes_of_context_gathers():
    shape = StepShape(tokens=1000, is_prefill=True)
    lines = by_name(predict_step(CONTEXT, V41, shape))
    # 500 rows from each of two ranks; every rank sends its rows to one other.
    assert lines["sequence", "window_gather"].num_bytes == 500 * 43 * 1024
    assert lines["sequence", "source_gather"].num_bytes == 500 * (3 * 4096 + 1024)
    assert lines["sequence", "exit_gather"].num_bytes == 500 * 10_240
    assert lines["experts", "dispatch"].num_bytes == 40 * 500 * 31_680


def test_context_ranks_cut_decode_rows_as_on_path_b():
    lines = by_name(predict_step(CONTEXT, V41, StepShape(tokens=60)))
    assert [key for key in lines if key[0] == "sequence"] == [("sequence", "all_gather")]
    assert lines["sequence", "all_gather"].count == 40
    assert lines["sequence", "all_gather"].num_bytes == 40 * 30 * 10_240
    assert lines["experts", "dispatch"].num_bytes == 40 * 30 * 31_680
    # Also where nothing is dispatched: each rank has the results of its part of the rows.
    alone = by_name(predict_step(Layout(cp=2), V41, StepShape(tokens=60)))
    assert ("sequence", "all_gather") in alone
    assert not [key for key in alone if key[0] == "experts"]


def test_path_b_sends_each_row_once():
    cut, whole = (
        by_name(predict_step(SPLIT, V41, StepShape(tokens=64, path=Path.B, cuts_rows=cuts)))
        for cuts in (True, False)
    )
    assert whole["experts", "dispatch"].num_bytes == 2 * cut["experts", "dispatch"].num_bytes
    # Ring over two ranks: each sends half of the rows twice.
    assert cut["attention", "all_reduce"].num_bytes == 40 * 64 * 10_240
    assert cut["attention", "all_gather"].num_bytes == 40 * 32 * 10_240


def test_path_a_rings():
    shape = StepShape(tokens=8, path=Path.A, padding=MAX, combine=REDUCE)
    lines = by_name(predict_step(ONE, V41, shape))
    everything = 8 * 8 * 10_240
    assert lines["domain", "all_gather"].num_bytes == 40 * everything * 7 // 8
    assert lines["domain", "all_reduce"].num_bytes == 40 * 2 * everything * 7 // 8


def test_a_dense_model_has_no_expert_lines():
    model = ModelSizes.from_config(read_config("llama3-70b")).step_model()
    lines = predict_step(Layout(dp=2), model, StepShape(tokens=5))
    assert [(line.channel, line.operation) for line in lines] == [("vote", "all_reduce")]
    shared = by_name(predict_step(Layout(attn_tp=8), model, StepShape(tokens=5)))
    assert shared["attention", "all_reduce"].count == 160


def test_float_rows_travel_with_weight_and_slot():
    assert FLOAT32_WIRE.dispatch_bytes(128) == 4 * 128 + 8
    assert FLOAT32_WIRE.combine_bytes(128) == 4 * 128


def test_float_rows_are_twice_as_wide_wherever_ranks_share_them():
    for layout, shape in (
        (CONTEXT, {"is_prefill": True}),
        (CONTEXT, {}),
        (SPLIT, {"path": Path.B}),
        (SPLIT, {"path": Path.A, "padding": MAX, "combine": SCATTER}),
    ):
        packed, plain = (
            by_name(predict_step(layout, V41, StepShape(tokens=64, wire=wire, **shape)))
            for wire in (FP8_WIRE, FLOAT32_WIRE)
        )
        for key in packed:
            if key[0] in {"sequence", "attention", "domain"} and "id_" not in key[1]:
                factor = 1 if key[1] == "source_gather" else 2
                assert plain[key].num_bytes == factor * packed[key].num_bytes, key


def test_what_transports_are_asked_for():
    shape = StepShape(tokens=60, is_prefill=True)
    found = as_recorded(predict_step(CONTEXT, V41, shape), CONTEXT, shape)
    # Windows of 40 layers and 3 draft stages, 4 sources, and the exit.
    assert found["sequence", "all_gather"] == (48, 30 * (43 * 1024 + 3 * 4096 + 1024 + 10_240))
    assert found["experts", "dispatch"][0] == 40
    shape = StepShape(tokens=60, path=Path.A, padding=MAX, combine=REDUCE)
    found = as_recorded(predict_step(SPLIT, V41, shape), SPLIT, shape)
    # Rows of each layer, and ids: all of four groups over eight ranks, and slices over two.
    assert found["domain", "all_gather"] == (40 + 1, 240 * (40 * 10_240 + 8) * 7 // 8)
    assert found["attention", "reduce_scatter"] == (40 + 1, 60 * (40 * 10_240 + 8) // 2)
    assert found["vote", "all_gather"] == (1, 72)
    shape = StepShape(tokens=60, path=Path.A, padding=SUM, combine=REDUCE)
    found = as_recorded(predict_step(SPLIT, V41, shape), SPLIT, shape)
    assert found["domain", "all_reduce"][0] == 40 + 40 + 1
    # Without copies there is nothing to sum: rows of each layer, and ids.
    shape = StepShape(tokens=60, path=Path.A, padding=SUM, combine=SCATTER)
    found = as_recorded(predict_step(ONE, V41, shape), ONE, shape)
    assert found["domain", "sized_gather"] == (40 + 1, 480 * (40 * 10_240 + 8) * 7 // 8)
    assert ("domain", "all_reduce") not in found


def test_uneven_groups_and_cut_rows():
    """What a step really had in place of equal parts."""
    rows = (7, 0, 2, 0)
    for padding, combine, slots in ((MAX, SCATTER, 4 * 8), (SUM, REDUCE, 9)):
        shape = StepShape(tokens=7, path=Path.A, padding=padding, combine=combine, group_rows=rows)
        lines = by_name(predict_step(SPLIT, V41, shape))
        everything = slots * 10_240 * 7 // 8
        if padding is MAX:
            assert lines["domain", "all_gather"].num_bytes == 40 * everything
            assert lines["domain", "reduce_scatter"].num_bytes == 40 * everything
            assert lines["attention", "all_gather"].num_bytes == 40 * 4 * 10_240
        else:
            assert lines["domain", "all_reduce"].num_bytes == 40 * 2 * everything
        # The attention's own sum is over the rows of the group.
        assert lines["attention", "all_reduce"].num_bytes == 40 * 7 * 10_240
    shape = StepShape(tokens=60, is_prefill=True, rank_rows=32, exit_rows=8)
    lines = by_name(predict_step(CONTEXT, V41, shape))
    assert lines["sequence", "window_gather"].num_bytes == 32 * 43 * 1024
    assert lines["sequence", "exit_gather"].num_bytes == 8 * 10_240
