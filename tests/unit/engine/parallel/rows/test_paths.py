"""Whole paths: vector T-PB1, choice of path, and layer output equal to one rank on any sizes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.parallel.layout import Layout, TensorFamily, TensorLayout, check_tensor_layout
from engine.parallel.ledger import Ledger, RecordingRowGroup, StepModel, StepShape, predict_step
from engine.parallel.rows import PaddingMode, RowSet, TaggedRows, ValueState
from engine.parallel.rows.modes import Combine, Path
from engine.parallel.rows.paths import path_a, path_b, path_plain
from tests.fakes.row_groups import run_ranks
from tests.fakes.vectors import vectors

PATH_B = vectors("path_b")


@pytest.mark.parametrize("name", PATH_B)
def test_path_b_vector(name):
    inputs, expected = PATH_B[name]["inputs"], PATH_B[name]["expected"]
    layout = TensorLayout(tp=inputs["tp"], dp=inputs["dp"], all_to_all=True)
    group = layout.attention_view.group_of(expected["ranks"][0], "tp")
    assert list(group) == expected["ranks"]
    place = layout.attention_view.coordinates(expected["ranks"][0])["dp"]
    assert place == inputs["dp_group"]
    letters = torch.tensor([[ord(row)] for row in inputs["rows"]])
    seen = {}

    def finish(rank):
        def experts(values, rows):
            seen[rank] = [chr(value) for value in values.flatten().tolist()]
            return values + 1000

        return experts

    def work(rank, attn_tp):
        addend = letters if attn_tp.rank else torch.zeros_like(letters)
        own = TaggedRows(
            values=addend, rows=RowSet.own([4], 0), states={"attn_tp": ValueState.PART}
        )
        result = path_b(own, attn_tp, finish(rank))
        result.require("attn_tp", ValueState.REP, "test")
        return ["y" + chr(value - 1000) for value in result.values.flatten().tolist()]

    assert run_ranks({"attn_tp": [[0, 1]]}, 2, work) == expected["B4"]
    assert [seen[rank] for rank in (0, 1)] == expected["B2"]
    assert sum(map(len, seen.values())) == expected["rows_dispatched_by_group"]
    # Without the cut each rank would send all rows.
    assert 2 * len(letters) == expected["rows_dispatched_without_cut"]


HIDDEN = 3


class Layer:
    """Integer attention output and experts, as one rank computes them and as `tp` ranks do."""

    def __init__(self, layout, counts, seed):
        generator = np.random.default_rng(seed)
        self.layout, self.counts = layout, counts
        self.num_shares = layout.tp
        self.rows = [
            torch.from_numpy(generator.integers(-9, 9, (count, HIDDEN))) for count in counts
        ]
        self.addends = [
            [torch.from_numpy(generator.integers(-9, 9, rows.shape)) for _ in range(layout.attn_tp)]
            for rows in self.rows
        ]
        for rows, parts in zip(self.rows, self.addends, strict=True):
            parts[-1] = rows - sum(parts[:-1], torch.zeros_like(rows))
        self.weights = torch.from_numpy(generator.integers(-9, 9, layout.tp))

    def one_rank(self, has_shared):
        total = int(self.weights.sum())
        return [rows * total + (rows + 7 if has_shared else 0) for rows in self.rows]

    def attention(self, rank):
        place = self.layout.attention_view.coordinates(rank)
        return TaggedRows(
            values=self.addends[place["dp"]][place["tp"]],
            rows=RowSet.own(self.counts, place["dp"]),
            states={"attn_tp": ValueState.PART, "tp": ValueState.UNIQ},
        )

    def run(self, work):
        layout = self.layout
        partitions = {
            "attn_tp": layout.groups(TensorFamily.ATTN_TP),
            "tp": layout.groups(TensorFamily.TP),
        }
        return run_ranks(partitions, layout.tp, work)

    def check(self, results, has_shared):
        expected = self.one_rank(has_shared)
        for rank, rows in enumerate(results):
            part = self.layout.attention_view.coordinates(rank)["dp"]
            rows.require("attn_tp", ValueState.REP, "test")
            assert rows.rows.num_rows == rows.rows.num_real
            assert torch.equal(rows.values, expected[part])


@st.composite
def layers(draw):
    layout = TensorLayout(
        tp=draw(st.sampled_from([1, 2, 4, 6, 8])), dp=draw(st.sampled_from([1, 2, 3, 4]))
    )
    if check_tensor_layout(layout):
        layout = TensorLayout(tp=layout.tp)
    counts = draw(st.lists(st.integers(0, 7), min_size=layout.attn_dp, max_size=layout.attn_dp))
    return Layer(layout, counts, draw(st.integers(0, 999)))


def shared_expert(rows):
    return rows + 7


@settings(max_examples=40, deadline=None)
@given(
    layer=layers(),
    has_extend=st.booleans(),
    combine=st.sampled_from(Combine),
    has_shared=st.booleans(),
)
def test_invariant_3_path_a_equals_one_rank(layer, has_extend, combine, has_shared):
    def work(rank, attn_tp, tp):
        return path_a(
            layer.attention(rank),
            attn_tp,
            tp,
            lambda values, rows: values * layer.weights[rank],
            has_extend=has_extend,
            combine=combine,
            shared=shared_expert if has_shared else None,
        )

    layer.check(layer.run(work), has_shared)


@settings(max_examples=40, deadline=None)
@given(layer=layers(), has_shared=st.booleans())
def test_invariants_3_and_4_path_b_equals_one_rank_and_sends_each_row_once(layer, has_shared):
    dispatched = [0] * layer.layout.tp

    def work(rank, attn_tp, tp):
        def experts(values, rows):
            assert all(rows.is_real)
            dispatched[rank] = len(values)
            # Dispatch and combine of a row: the sum over all shares, wherever they are.
            return values * layer.weights.sum()

        return path_b(
            layer.attention(rank),
            attn_tp,
            experts,
            shared=shared_expert if has_shared else None,
        )

    layer.check(layer.run(work), has_shared)
    assert sum(dispatched) == sum(layer.counts)


@settings(max_examples=15, deadline=None)
@given(tp=st.sampled_from([1, 2, 4]), rows=st.integers(0, 6), seed=st.integers(0, 99))
def test_plain_path_equals_one_rank(tp, rows, seed):
    layer = Layer(TensorLayout(tp=tp), [rows], seed)

    def work(rank, attn_tp, tp):
        return path_plain(
            layer.attention(rank),
            attn_tp,
            lambda values, rows: values * layer.weights[rank],
            shared=shared_expert,
        )

    layer.check(layer.run(work), has_shared=True)


class Shares:
    """Records what each rank of a layer sends, under the channel names of the prediction."""

    def __init__(self, layout, tokens, path, has_extend=False, combine=None):
        self.layer = Layer(layout, [tokens] * layout.attn_dp, seed=tokens)
        self.ledgers = [Ledger() for _ in range(layout.tp)]

        def work(rank, attn_tp, tp):
            ledger = self.ledgers[rank]
            attention = RecordingRowGroup(attn_tp, ledger, "attention")
            domain = RecordingRowGroup(tp, ledger, "domain")
            own = self.layer.attention(rank)
            # Two bytes a number, as the prediction counts.
            own = own.with_values(own.values.to(torch.float16))
            if path is Path.A:
                return path_a(
                    own,
                    attention,
                    domain,
                    lambda values, rows: values,
                    has_extend=has_extend,
                    combine=combine,
                )
            return path_b(own, attention, lambda values, rows: values)

        self.layer.run(work)

    def totals(self):
        totals = [ledger.totals() for ledger in self.ledgers]
        for other in totals[1:]:
            assert other.digests == totals[0].digests
        return {key: (totals[0].counts[key], totals[0].num_bytes[key]) for key in totals[0].counts}


@pytest.mark.parametrize("attn_tp", [1, 2, 4])
@pytest.mark.parametrize(
    ("path", "padding", "combine"),
    [
        (Path.B, PaddingMode.SUM, Combine.ALL_REDUCE),
        *((Path.A, padding, combine) for padding in PaddingMode for combine in Combine),
    ],
)
def test_a_layer_makes_the_predicted_collectives(attn_tp, path, padding, combine):
    tokens, dp = 8, 3
    domain = TensorLayout(tp=dp * attn_tp, dp=dp)
    found = Shares(domain, tokens, path, padding is PaddingMode.SUM, combine).totals()

    model = StepModel(hidden=HIDDEN, top_k=1, num_layers=1, num_moe_layers=1)
    shape = StepShape(tokens=tokens, path=path, padding=padding, combine=combine)
    layout = Layout(dp=dp, attn_tp=attn_tp, ep=dp * attn_tp)
    predicted = {}
    for line in predict_step(layout, model, shape):
        if line.channel in ("attention", "domain") and line.is_per_layer:
            key = line.channel, line.operation
            count, num_bytes = predicted.get(key, (0, 0))
            predicted[key] = (count + line.count, num_bytes + line.num_bytes)
    assert found == predicted
